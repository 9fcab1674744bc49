// Command lifecycle is a sluice plugin that gives endpoints that have just started, and endpoints that terminate, less than their
// share. See README.md and package lifecycle.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(lifecycle.New) }

func main() {}
