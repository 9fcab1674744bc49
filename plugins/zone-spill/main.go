// Command zone-spill is a sluice plugin that keeps new connections in their zone, up to its capacity. See README.md and
// package zonespill.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/zone-spill/zonespill"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(zonespill.New) }

func main() {}
