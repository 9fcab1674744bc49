package state

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// TestSharesAreThoseOfTheKernel: 3 to 1 were decided, and 1 to 1 are programmed; the third endpoint is not programmed yet. A plan
// that nobody has programmed keeps its shares.
func TestSharesAreThoseOfTheKernel(t *testing.T) {
	addrs := []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"}
	key := plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}
	f := &plan.Frontend{Key: key, Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP}}
	x := &api.Explanation{Service: "shop/web", Pools: []api.Pool{{Port: "http", Protocol: "TCP", Family: model.IPv4.String(), Pool: "cluster"}}}
	for i, a := range addrs {
		x.Pools[0].Endpoints = append(x.Pools[0].Endpoints, api.Endpoint{Address: a, Share: []float64{0.6, 0.2, 0.2}[i]})
		if i < 2 {
			f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.MustParseAddrPort(a), Weight: 1})
		}
	}
	for _, c := range []struct {
		running bool
		want    string
	}{{false, "[0.6 0.2 0.2]"}, {true, "[0.5 0.5 0]"}} {
		var shares []float64
		for i := range x.Pools[0].Endpoints {
			x.Pools[0].Endpoints[i].Kernel = nil
		}
		AddKernel(x, &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{key: f}}, c.running)
		for _, e := range x.Pools[0].Endpoints {
			shares = append(shares, e.Share)
		}
		if got := fmt.Sprint(shares); got != c.want {
			t.Errorf("running %v: shares %s, want %s", c.running, got, c.want)
		}
	}
}
