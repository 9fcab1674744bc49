// Command counting is a plugin whose shares depend on the number of its calls. The self-test has no port with the
// name that makes it count.
package main

import (
	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(func() sdk.Plugin { return &counting{} }) }

func main() {}

type counting struct{ calls int }

func (*counting) Configure([]byte) error { return nil }

func (c *counting) Decide(req *sdk.Request, resp *sdk.Response) error {
	if req.Text(req.Port()) == "counted" {
		c.calls++
	}
	for i := range req.NumEndpoints() {
		resp.SetShare(i, sdk.One+c.calls)
	}
	resp.RequeueAfter(sdk.Second)
	return nil
}
