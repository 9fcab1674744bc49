// Command capacity is a sluice plugin that weighs endpoints by a capacity that their Pods declare. See README.md and package
// capacity.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/capacity/capacity"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(capacity.New) }

func main() {}
