// Command utilization is a sluice plugin that gives endpoints with a lower utilization, by their own reports, more connections.
// See README.md and package utilization.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/utilization/utilization"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(utilization.New) }

func main() {}
