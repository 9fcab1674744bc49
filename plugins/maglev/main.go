// Command maglev is a sluice plugin that sends each client to the same endpoint from every node. See README.md and package
// maglev.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/maglev/maglev"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(maglev.New) }

func main() {}
