package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestConnectionsAreCountedThroughAllFrontendsAndOnlyWhereAsked(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
	p := web(t, 1, 1)
	for k, f := range frontend(t, "*4:30080/TCP  NodePort", "", []int{1, 1}).Frontends {
		p.Frontends[k] = f
	}
	for k, f := range frontend(t, "10.96.0.81:53/UDP  ClusterIP", "", []int{1}).Frontends {
		p.Frontends[k] = f
	}
	d.apply(b, p, nil)
	first, second := netip.MustParseAddrPort("10.244.0.1:9000"), netip.MustParseAddrPort("10.244.0.2:9000")
	for _, s := range d.virtualServers {
		for a, m := range s.destinations {
			m.active, m.inactive = 2, 7
			s.destinations[a] = m
		}
	}
	count := func(endpoints []model.EndpointKey, frontends ...plan.Key) map[model.EndpointKey]uint32 {
		t.Helper()
		out := map[model.EndpointKey]uint32{}
		for _, e := range endpoints {
			out[e] = 0
		}
		if err := b.CountConnections(context.Background(), frontends, out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	tcp := func(a netip.AddrPort) model.EndpointKey { return model.EndpointKey{Addr: a, Protocol: model.TCP} }
	udp := model.EndpointKey{Addr: first, Protocol: model.UDP}
	clusterIP := plan.Key{Addr: netip.MustParseAddr("10.96.0.80"), Port: 80, Protocol: model.TCP}
	nodePort := plan.Key{Addr: netip.IPv4Unspecified(), Port: 30080, Protocol: model.TCP}
	dns := plan.Key{Addr: netip.MustParseAddr("10.96.0.81"), Port: 53, Protocol: model.UDP}

	one := count([]model.EndpointKey{tcp(first), tcp(second)}, clusterIP)
	if one[tcp(first)] == 0 || one[tcp(first)]%2 != 0 || one[tcp(first)] != one[tcp(second)] {
		t.Errorf("of one frontend: %v", one)
	}
	both := count([]model.EndpointKey{tcp(first)}, clusterIP, nodePort, clusterIP)
	if len(both) != 1 || both[tcp(first)] <= one[tcp(first)] {
		t.Errorf("of two frontends: %v, of one %v", both, one)
	}
	if got, want := count([]model.EndpointKey{udp, tcp(first)}, dns), (map[model.EndpointKey]uint32{udp: 7, tcp(first): 0}); !maps.Equal(got, want) {
		t.Errorf("UDP: got %v, want %v", got, want)
	}
	if got := count([]model.EndpointKey{tcp(first)}, plan.Key{Addr: netip.MustParseAddr("10.96.0.99"), Port: 80, Protocol: model.TCP}); got[tcp(first)] != 0 {
		t.Errorf("of a frontend that does not exist: %v", got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.CountConnections(ctx, []plan.Key{clusterIP}, map[model.EndpointKey]uint32{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
