// Command failover is a sluice plugin that uses groups of endpoints in order, as far as they are healthy. See README.md and package
// failover.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/failover/failover"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(failover.New) }

func main() {}
