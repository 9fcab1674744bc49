package planner

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestEndpointsInReservedBlocksThatTheClusterUses: as soon as the configuration or the Node says so, and no longer.
func TestEndpointsInReservedBlocksThatTheClusterUses(t *testing.T) {
	name := model.Name{Namespace: "shop", Name: "web"}
	p := plannerWithNode(Settings{Node: "n0"}, nil)
	p.Apply([]model.Change{{Kind: model.SliceKind, Name: name, Slice: &model.EndpointSlice{Name: name, Service: name, Family: model.IPv4,
		Ports: []model.SlicePort{{Name: "p0", Protocol: model.TCP, Port: 8080}}, Endpoints: []model.SliceEndpoint{
			{Addr: netip.MustParseAddr("240.9.0.1"), Ready: true}, {Addr: netip.MustParseAddr("0.9.0.1"), Ready: true}}}}})
	now := time.Unix(1000, 0)
	want := func(when string, n int) {
		t.Helper()
		now = now.Add(time.Second)
		p.PlanNow(now)
		if got := len(clusterIP(p).Pool.Endpoints); got != n {
			t.Errorf("%s: %d endpoints, want %d", when, got, n)
		}
	}
	node := func(n model.Node) { n.Name = "n0"; p.Apply([]model.Change{nodeChange(&n)}) }
	want("nothing is in 240.0.0.0/4", 0)
	node(model.Node{PodCIDRs: prefixes("240.1.0.0/24")})
	want("a podCIDR is", 1)
	node(model.Node{Addresses: addrs("10.0.0.1")})
	want("the Node has lost its podCIDRs: the last known ones stay in force", 1)
	pods := prefixes("10.1.0.0/24")
	node(model.Node{Addresses: addrs("10.0.0.1"), PodCIDRs: pods})
	want("nothing is any more", 0)
	node(model.Node{Addresses: addrs("10.0.0.1", "250.0.0.1"), PodCIDRs: pods})
	want("the Node is", 1)
	node(model.Node{Addresses: addrs("10.0.0.1"), PodCIDRs: pods})
	p.Configure(Settings{Node: "n0", ClusterRanges: prefixes("10.0.0.0/8", "0.0.0.0/8", "245.0.0.1/32")})
	want("the configuration names both blocks", 2)
	p.Configure(Settings{Node: "n0", Planning: Planning{BindAddress: netip.MustParseAddr("240.0.0.1")}})
	want("bindAddress is", 1)
	p.Configure(Settings{Node: "n0", ClusterRanges: prefixes("0.0.0.0/0")})
	want("all addresses are named", 0)
}
