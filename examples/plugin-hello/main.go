// Command plugin-hello is a minimal plugin with settings: it multiplies the weight of endpoints on this node. See
// sdk/README.md.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(newPlugin) }

func main() {}

func newPlugin() sdk.Plugin { return &plugin{Factor: 3} }

// plugin is also its settings: {"factor": 5}.
type plugin struct {
	Factor int `json:"factor" range:"1,100"`
}

func (p *plugin) Configure(settings []byte) error {
	return sdk.UnmarshalSettings(settings, p)
}

func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Local() {
			resp.SetWeight(i, e.Weight()*p.Factor)
			resp.SetReason(i, "on this node")
		}
	}
	return nil
}
