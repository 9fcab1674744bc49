// Command plugin-hello is a minimal plugin with settings: it multiplies the weight of endpoints on this node. See
// sdk/README.md.
package main

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(newPlugin) }

func main() {}

func newPlugin() sdk.Plugin { return &plugin{Factor: 3} }

// plugin is also its settings: {"factor": 5}.
type plugin struct {
	Factor int `json:"factor"`
}

func (p *plugin) Configure(settings []byte) error {
	if err := sdk.UnmarshalSettings(settings, p); err != nil {
		return err
	}
	if p.Factor < 1 || p.Factor > 100 {
		return fmt.Errorf("factor: %d is not in 1 to 100", p.Factor)
	}
	return nil
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
