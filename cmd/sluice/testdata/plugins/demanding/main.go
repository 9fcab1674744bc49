// Command demanding is a plugin that asks for more than a data plane may support: least connections, and weights of 1000
// to 1.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(func() sdk.Plugin { return demanding{} }) }

func main() {}

type demanding struct{}

func (demanding) Configure([]byte) error { return nil }

func (demanding) Decide(req *sdk.Request, resp *sdk.Response) error {
	resp.SetBalance(sdk.BalanceLeastConnections)
	for i := range req.NumEndpoints() {
		resp.SetWeight(i, 1)
		if i == 0 {
			resp.SetWeight(i, 1000)
		}
	}
	return nil
}
