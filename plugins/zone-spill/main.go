// Command zone-spill is a sluice plugin: new connections stay in the zone they come from, up to its capacity.
// README.md says what it decides; package zonespill decides it.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/zone-spill/zonespill"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(zonespill.New) }

func main() {}
