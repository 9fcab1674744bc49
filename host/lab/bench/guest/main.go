// Command guest is a plugin to measure calls with: what examples/plugin-c does, in Go. Endpoints in this node's zone get
// three times the weight of the others.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(newPlugin) }

func main() {}

func newPlugin() sdk.Plugin { return new(plugin) }

type plugin struct{}

func (*plugin) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(*sdk.Fields) {})
}

func (*plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	zone := req.NodeZone()
	if zone == sdk.NoString {
		return nil
	}
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Zone() == zone {
			resp.SetShare(i, e.Share()*3)
		}
	}
	return nil
}
