// Command subset is a sluice plugin that gives each node a subset of the endpoints. See README.md and package subset.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/subset/subset"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(subset.New) }

func main() {}
