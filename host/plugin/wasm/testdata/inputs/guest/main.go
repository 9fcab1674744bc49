// Command guest is the plugin of package inputs as a module.
package main

import (
	"github.com/sluice-proxy/sluice/host/plugin/wasm/testdata/inputs"
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(inputs.New) }

func main() {}
