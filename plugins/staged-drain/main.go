// Command staged-drain is a sluice plugin: an endpoint that terminates loses its share of new connections in stages.
// README.md says what it decides; package stageddrain decides it.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/staged-drain/stageddrain"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(stageddrain.New) }

func main() {}
