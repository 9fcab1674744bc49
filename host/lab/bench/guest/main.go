// Command guest is a plugin to measure calls with: what examples/plugin-c does, in Go. Endpoints in this node's zone get
// three times the weight of the others.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Serve(newPlugin) }

func main() {}

func newPlugin() sdk.Plugin { return new(plugin) }

type plugin struct{}

func (*plugin) Configure(settings []byte) error { return sdk.Settings(settings, &struct{}{}) }

func (*plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	zone := req.Zone()
	if zone == sdk.None {
		return nil
	}
	for i := range req.Len() {
		if e := req.Endpoint(i); e.Zone() == zone {
			resp.SetWeight(i, e.Weight()*3)
		}
	}
	return nil
}
