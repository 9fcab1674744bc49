// Command canary is a sluice plugin that gives groups of endpoints fixed shares of new connections. See README.md and package
// canary.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/canary/canary"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(canary.New) }

func main() {}
