package agent

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func TestIPVSCountersBecomeMetrics(t *testing.T) {
	c := backend.ServerStats{
		Server: "fwmark 0x5ce00001 IPv4", Frontend: plan.Key{Addr: netip.IPv4Unspecified(), Port: 30080, Protocol: model.TCP},
		Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP},
		Pool:  backend.PoolAll, Scheduler: "wrr",
		ServerCounters: backend.ServerCounters{Connections: 4, PacketsIn: 20, PacketsOut: 16, BytesIn: 2000, BytesOut: 1600},
		Destinations: []backend.DestinationStats{
			{Addr: netip.MustParseAddrPort("10.244.0.1:80"), Weight: 3, Active: 2, Inactive: 7},
			{Addr: netip.MustParseAddrPort("10.244.0.2:80"), Active: 1, Draining: true},
		},
	}
	want := metrics.IPVSVirtualServer{
		Address: "*4:30080/TCP", Pool: "all", Namespace: "shop", Service: "web", Port: "http", Scheduler: "wrr",
		RealServers: 2, DrainingRealServers: 1, ActiveConnections: 3, InactiveConnections: 7, Connections: 4, PacketsIn: 20, PacketsOut: 16, BytesIn: 2000, BytesOut: 1600,
	}
	if got := ipvsMetrics(&c); got != want {
		t.Errorf("%+v", got)
	}
}
