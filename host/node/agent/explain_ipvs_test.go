package agent

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

func TestIPVSConnectionsAreAddedToTheirEndpoints(t *testing.T) {
	c := backend.ServerStats{
		Server: "of mark 0x5ce00001 IPv4", Frontend: plan.Key{Addr: netip.IPv4Unspecified(), Port: 30080, Protocol: model.TCP},
		Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP},
		Pool:  backend.PoolAll, Scheduler: "wrr",
		ServerCounters: backend.ServerCounters{Connections: 4, PacketsIn: 20, PacketsOut: 16, BytesIn: 2000, BytesOut: 1600},
		Destinations: []backend.DestinationStats{
			{Addr: netip.MustParseAddrPort("10.244.0.1:80"), Weight: 3, Active: 2, Inactive: 7},
			{Addr: netip.MustParseAddrPort("10.244.0.2:80"), Active: 1, Draining: true},
		},
	}
	programmed := func(addr string, weight uint16) api.Endpoint {
		return api.Endpoint{Address: addr, Kernel: []api.KernelShare{
			{Frontend: "10.96.0.1:80/TCP", Weight: weight, Total: 3}, {Frontend: "*4:30080/TCP", Weight: weight, Total: 3},
		}}
	}
	x := &api.Explanation{Service: "shop/web", Pools: []api.Pool{{Pool: "cluster", Endpoints: []api.Endpoint{programmed("10.244.0.1:80", 3), programmed("10.244.0.9:80", 0)}}}}
	AddIPVSStats(x, []backend.ServerStats{c})
	for i, want := range []*api.Connections{{Active: 2, Inactive: 7}, nil} {
		k := x.Pools[0].Endpoints[i].Kernel
		if k[0].Connections != nil || (k[1].Connections == nil) != (want == nil) || want != nil && *k[1].Connections != *want {
			t.Errorf("endpoint %d: %+v %v, want %v behind the NodePort only", i, k, k[1].Connections, want)
		}
	}
	other := *x
	other.Service = "shop/other"
	other.Pools = []api.Pool{{Pool: "cluster", Endpoints: []api.Endpoint{programmed("10.244.0.1:80", 3)}}}
	if AddIPVSStats(&other, []backend.ServerStats{c}); other.Pools[0].Endpoints[0].Kernel[1].Connections != nil {
		t.Error("another Service has the connections")
	}
}
