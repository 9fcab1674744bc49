// Package main is zone-weight: ready endpoints in the zone of the node get more weight than the others, as long as they are not
// busy.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(func() sdk.Plugin { return &plugin{factor: 3} }) }

func main() {}

type plugin struct{ factor, busy int64 }

func (p *plugin) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) {
		f.Int("factor", &p.factor, 1, 100)
		f.Int("busyConnections", &p.busy, 0, 100000)
	})
}

// Needs implements sdk.Needer.
func (p *plugin) Needs() sdk.Need {
	if p.busy > 0 {
		return sdk.NeedConnections
	}
	return 0
}

func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if !e.Ready() || e.Zone() != req.NodeZone() || e.Zone() == sdk.NoString {
			continue // keeps its share
		}
		if n, counted := e.Connections(); p.busy > 0 && counted && int64(n) >= p.busy {
			resp.SetReason(i, "busy")
			continue
		}
		resp.SetShare(i, e.Share()*int(p.factor))
		resp.SetReason(i, "in zone "+req.Text(e.Zone()))
	}
	return nil
}
