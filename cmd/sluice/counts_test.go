package main

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/metrics"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

func TestCountsOfIPVSGoToMetricsAndToExplain(t *testing.T) {
	c := ipvs.ServerStats{
		Server: "of mark 0x5ce00001 IPv4", Frontend: plan.Key{Addr: netip.IPv4Unspecified(), Port: 30080, Protocol: model.TCP},
		Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP},
		Pool:  ipvs.PoolAll, Scheduler: "wrr",
		Counters: ipvs.Counters{Connections: 4, PacketsIn: 20, PacketsOut: 16, BytesIn: 2000, BytesOut: 1600},
		Destinations: []ipvs.DestinationStats{
			{Addr: netip.MustParseAddrPort("10.244.0.1:80"), Weight: 3, Active: 2, Inactive: 7},
			{Addr: netip.MustParseAddrPort("10.244.0.2:80"), Active: 1, Draining: true},
		},
	}
	want := metrics.IPVSVirtualServer{
		Address: "*4:30080/TCP", Pool: "all", Namespace: "shop", Service: "web", Port: "http", Scheduler: "wrr",
		RealServers: 2, DrainingRealServers: 1, ActiveConnections: 3, InactiveConnections: 7, Connections: 4, PacketsIn: 20, PacketsOut: 16, BytesIn: 2000, BytesOut: 1600,
	}
	if got := ipvsServer(&c); got != want {
		t.Errorf("%+v", got)
	}
	held := func(addr string, weight uint16) explainEndpoint {
		return explainEndpoint{Address: addr, Kernel: []kernelShare{
			{Frontend: "10.96.0.1:80/TCP", Weight: weight, Total: 3}, {Frontend: "*4:30080/TCP", Weight: weight, Total: 3},
		}}
	}
	x := &explanation{Service: "shop/web", Pools: []explainPool{{Pool: "cluster", Endpoints: []explainEndpoint{held("10.244.0.1:80", 3), held("10.244.0.9:80", 0)}}}}
	x.addCounts([]ipvs.ServerStats{c})
	e := x.Pools[0].Endpoints
	if got, want := e[0].kernelText(), "10.96.0.1:80/TCP: 3 of 3, *4:30080/TCP: 3 of 3 (2 active, 7 inactive)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := e[1].kernelText(), "0 of 3"; got != want {
		t.Errorf("no member: got %s, want %s", got, want)
	}
	other := *x
	other.Service = "shop/other"
	other.Pools = []explainPool{{Pool: "cluster", Endpoints: []explainEndpoint{held("10.244.0.1:80", 3)}}}
	if other.addCounts([]ipvs.ServerStats{c}); other.Pools[0].Endpoints[0].Kernel[1].Connections != nil {
		t.Error("another Service has the connections")
	}
}
