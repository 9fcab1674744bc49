// Command demanding is a plugin that asks for more than a data plane may support: least connections, and shares of 1000
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
		resp.SetShare(i, sdk.One)
		if i == 0 {
			resp.SetShare(i, 1000*sdk.One)
		}
	}
	return nil
}
