package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(func() sdk.Plugin { return zoneFirst{} }) }

func main() {}

type zoneFirst struct{}

func (zoneFirst) Configure([]byte) error { return nil }

// Decide gives the endpoints in this node's zone four times the share of the others.
func (zoneFirst) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Zone() == req.NodeZone() {
			resp.SetShare(i, 4*e.Share())
			resp.SetReason(i, "same zone")
		}
	}
	return nil
}
