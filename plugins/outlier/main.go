// Command outlier is a sluice plugin that ejects endpoints that do not answer or refuse connections. See README.md and package
// outlier.
package main

import (
	"github.com/sluice-proxy/sluice/plugins/outlier/outlier"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(outlier.New) }

func main() {}
