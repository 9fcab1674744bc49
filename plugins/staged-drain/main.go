// Command staged-drain is a sluice plugin that reduces the share of terminating endpoints in stages. See README.md and package
// stageddrain.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/staged-drain/stageddrain"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(stageddrain.New) }

func main() {}
