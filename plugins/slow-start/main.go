// Command slow-start is a sluice plugin that increases the share of new endpoints in steps. See README.md and package slowstart.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/slow-start/slowstart"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(slowstart.New) }

func main() {}
