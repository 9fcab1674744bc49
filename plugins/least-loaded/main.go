// Command least-loaded is a sluice plugin that gives endpoints with fewer open connections more new ones. See README.md and
// package leastloaded.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/least-loaded/leastloaded"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(leastloaded.New) }

func main() {}
