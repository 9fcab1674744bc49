// Command prefer is a plugin for tests: it sends all connections to endpoints that terminate, or to none of them.
package main

import "github.com/sluice-proxy/sluice/sdk"

type plugin struct {
	terminating bool
}

func (p *plugin) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) { f.Bool("terminating", &p.terminating) })
}

// Decide implements sdk.Plugin.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		if req.Endpoint(i).Terminating() == p.terminating {
			resp.SetCapacity(i, sdk.One)
			resp.SetReason(i, "preferred")
		}
	}
	return nil
}

func init() { sdk.Register(func() sdk.Plugin { return &plugin{} }) }

func main() {}
