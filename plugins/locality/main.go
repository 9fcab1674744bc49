// Command locality is a sluice plugin that divides new connections between zones, or other groups of endpoints, by capacity or by
// priority. See README.md and package locality.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/locality/locality"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(locality.New) }

func main() {}
