// Command plugin-hello is a minimal plugin with settings: it multiplies the share of endpoints on this node. See
// sdk/README.md.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(newPlugin) }

func main() {}

func newPlugin() sdk.Plugin { return &plugin{factor: 3} }

type plugin struct {
	factor int64
}

// Configure reads settings such as {"factor": 5}.
func (p *plugin) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) { f.Int("factor", &p.factor, 1, 100) })
}

func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Local() {
			resp.SetShare(i, e.Share()*int(p.factor))
			resp.SetReason(i, "on this node")
		}
	}
	return nil
}
