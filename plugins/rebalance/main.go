// Command rebalance is a sluice plugin that moves established connections to new endpoints after a scale-up. See README.md and
// package rebalance.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/rebalance/rebalance"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(rebalance.New) }

func main() {}
