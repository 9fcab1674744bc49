// Command nightly is a plugin that from 22:00 to 06:00 UTC gives the endpoints of this node's zone three times the share of the
// others.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(func() sdk.Plugin { return nightly{} }) }

func main() {}

type nightly struct{}

func (nightly) Configure([]byte) error { return nil }

func (nightly) Decide(req *sdk.Request, resp *sdk.Response) error {
	const day, begin, end = 24 * sdk.Hour, 22 * sdk.Hour, 6 * sdk.Hour
	now := req.Now().Sub(0) % day
	reason, factor, until := "by day", 1, begin-now
	if now >= begin || now < end {
		reason, factor, until = "by night", 3, (end+day-now)%day
	}
	resp.RequeueAfter(until)
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Zone() == req.NodeZone() {
			resp.SetShare(i, factor*e.Share())
		}
		resp.SetReason(i, reason)
	}
	return nil
}
