package eligibility

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

var name = model.Name{Namespace: "shop", Name: "web"}

// randomPort makes a Service port with random policies and endpoints; few addresses, so that slices collide.
func randomPort(r *rand.Rand) (*model.Service, []*model.EndpointSlice, NodeInfo) {
	flip := func() bool { return r.IntN(2) == 0 }
	nodeInfo := NodeInfo{Node: "n1", Zone: []string{"", "a", "b"}[r.IntN(3)]}
	svc := &model.Service{
		Name:          name,
		ClusterIPs:    []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")},
		InternalLocal: flip(), ExternalLocal: flip(),
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
	if flip() {
		svc.Ports[0].NodePort = 30080
	}
	if flip() {
		svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	}
	hints := func(all ...string) []string {
		if r.IntN(5) == 0 {
			return nil
		}
		return []string{all[r.IntN(len(all))]}
	}
	hinted := r.IntN(3)
	var all []*model.EndpointSlice
	for i := range r.IntN(4) {
		s := &model.EndpointSlice{
			Name: model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, Service: name, Family: model.IPv4,
			Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: uint16(8080 + r.IntN(2))}, {Name: "http", Protocol: model.UDP, Port: 1}},
		}
		if r.IntN(8) == 0 {
			s.Family = model.IPv6
		}
		for range r.IntN(5) {
			e := model.SliceEndpoint{
				Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(8))}), Node: []string{"", "n1", "n2"}[r.IntN(3)],
				Zone: "a", Ready: r.IntN(3) > 0, Serving: flip(), Terminating: flip(),
			}
			if hinted > 0 {
				e.Hints = &model.Hints{Zones: hints("a", "b")}
			}
			if hinted > 1 {
				e.Hints.Nodes = hints("n1", "n2")
			}
			s.Endpoints = append(s.Endpoints, e)
		}
		all = append(all, s)
	}
	return svc, all, nodeInfo
}

// oracle determines the endpoints in the lists by the sentences of the rules, without regard to cost: sets of addresses.
func oracle(p *Port, svc *model.Service) (cluster, local []netip.AddrPort) {
	where := func(keep func(Endpoint) bool) (out []Endpoint) {
		for _, e := range p.Endpoints {
			if keep(e) {
				out = append(out, e)
			}
		}
		return out
	}
	addrs := func(eps []Endpoint) (out []netip.AddrPort) {
		for _, e := range eps {
			out = append(out, e.Addr)
		}
		return out
	}
	ready := where(func(e Endpoint) bool { return e.Ready })
	externally := svc.Ports[0].NodePort != 0 || len(svc.ExternalIPs) > 0
	if !svc.InternalLocal || externally {
		eps := ready
		node := where(func(e Endpoint) bool { return e.Ready && e.HintedNode })
		zone := where(func(e Endpoint) bool { return e.Ready && e.HintedZone })
		if len(node) > 0 && len(where(func(e Endpoint) bool { return e.Ready && !e.HasNodeHints })) == 0 {
			eps = node
		} else if len(zone) > 0 && len(where(func(e Endpoint) bool { return e.Ready && !e.HasZoneHints })) == 0 {
			eps = zone
		}
		if len(ready) == 0 {
			eps = where(func(e Endpoint) bool { return e.Serving && e.Terminating })
		}
		cluster = addrs(eps)
	}
	if svc.InternalLocal || svc.ExternalLocal && externally {
		eps := where(func(e Endpoint) bool { return e.Local && e.Ready })
		if len(eps) == 0 {
			eps = where(func(e Endpoint) bool { return e.Local && e.Serving && e.Terminating })
		}
		local = addrs(eps)
	}
	return cluster, local
}

func TestSelectEndpointsMatchesReferenceImplementation(t *testing.T) {
	for seed := range uint64(20000) {
		svc, all, nodeInfo := randomPort(rand.New(rand.NewPCG(seed, 1)))
		p := SelectEndpoints(svc, &svc.Ports[0], model.IPv4, all, nodeInfo)
		var cluster, local []netip.AddrPort
		for i := range p.Endpoints {
			e := &p.Endpoints[i]
			if e.InCluster {
				cluster = append(cluster, e.Addr)
			}
			if e.InLocal {
				local = append(local, e.Addr)
			}
			if (e.InCluster || e.InLocal) && !e.Eligible() {
				t.Fatalf("seed %d: %v is chosen but not eligible", seed, e.Addr)
			}
			if p.Explain(e) == "" {
				t.Fatalf("seed %d: no reason for %v", seed, e.Addr)
			}
		}
		wantCluster, wantLocal := oracle(p, svc)
		if !slices.Equal(cluster, wantCluster) || !slices.Equal(local, wantLocal) {
			t.Fatalf("seed %d:\ncluster %v, want %v\nlocal %v, want %v", seed, cluster, wantCluster, local, wantLocal)
		}
		rand.New(rand.NewPCG(seed, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		again := SelectEndpoints(svc, &svc.Ports[0], model.IPv4, all, nodeInfo)
		if !slices.Equal(p.Endpoints, again.Endpoints) {
			t.Fatalf("seed %d: the order of slices matters", seed)
		}
	}
}

func port(t *testing.T, svc model.Service, nodeInfo NodeInfo, eps ...model.SliceEndpoint) *Port {
	t.Helper()
	svc.Name = name
	svc.Ports = []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}}
	s := &model.EndpointSlice{
		Name: model.Name{Namespace: "shop", Name: "s"}, Service: name, Family: model.IPv4, Endpoints: eps,
		Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
	return SelectEndpoints(&svc, &svc.Ports[0], model.IPv4, []*model.EndpointSlice{s}, nodeInfo)
}

func ep(addr, node string, ready, serving, terminating bool) model.SliceEndpoint {
	return model.SliceEndpoint{Addr: netip.MustParseAddr(addr), Node: node, Ready: ready, Serving: serving, Terminating: terminating}
}

func TestNewPodTakesPrecedenceOverTerminatingPodWithSameAddress(t *testing.T) {
	p := port(t, model.Service{}, NodeInfo{Node: "n1"},
		ep("10.0.0.1", "n1", false, true, true), ep("10.0.0.1", "n2", true, true, false))
	if len(p.Endpoints) != 1 || !p.Endpoints[0].Ready || p.Endpoints[0].Local {
		t.Fatalf("got %+v", p.Endpoints)
	}
	p = port(t, model.Service{}, NodeInfo{Node: "n1"},
		ep("10.0.0.1", "n1", false, true, true), ep("10.0.0.1", "n1", false, false, false))
	if len(p.Endpoints) != 1 || p.Endpoints[0].Terminating || p.Endpoints[0].InCluster {
		t.Fatalf("the Pod at the address is not ready: %+v", p.Endpoints)
	}
}

func TestFallbacksToTerminatingEndpointsAreIndependent(t *testing.T) {
	p := port(t, model.Service{ExternalLocal: true}, NodeInfo{Node: "n1"},
		ep("10.0.0.1", "n1", false, true, true), ep("10.0.0.2", "n2", true, true, false))
	if e := p.Endpoints[0]; e.InCluster || !e.InLocal {
		t.Errorf("the local terminating endpoint: %+v", e)
	}
	if e := p.Endpoints[1]; !e.InCluster || e.InLocal {
		t.Errorf("the ready remote endpoint: %+v", e)
	}
}

func TestReadyEndpointWithoutHintDisablesTopology(t *testing.T) {
	hinted := ep("10.0.0.1", "n1", true, true, false)
	hinted.Hints = &model.Hints{Zones: []string{"a"}}
	other := ep("10.0.0.2", "n2", true, true, false)
	p := port(t, model.Service{}, NodeInfo{Node: "n1", Zone: "a"}, hinted, other)
	if p.Topology != NoTopology || !p.Endpoints[1].InCluster {
		t.Fatalf("topology %v, %+v", p.Topology, p.Endpoints[1])
	}
	other.Hints = &model.Hints{Zones: []string{"b"}}
	p = port(t, model.Service{}, NodeInfo{Node: "n1", Zone: "a"}, hinted, other)
	if p.Topology != SameZone || p.Endpoints[1].InCluster {
		t.Fatalf("topology %v, %+v", p.Topology, p.Endpoints[1])
	}
}

func TestExternalTrafficPolicyRequiresExternalAddress(t *testing.T) {
	svc := &model.Service{Name: name, ExternalLocal: true, Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}}}
	p := SelectEndpoints(svc, &svc.Ports[0], model.IPv4, nil, NodeInfo{Node: "n1"})
	if p.UsesLocal || !p.UsesCluster {
		t.Fatalf("uses local %v, cluster %v", p.UsesLocal, p.UsesCluster)
	}
}

func TestIgnoredHintsSayWhy(t *testing.T) {
	at := func(ip, zone string) model.SliceEndpoint {
		e := ep(ip, "n1", true, true, false)
		if zone != "" {
			e.Hints = &model.Hints{Zones: []string{zone}}
		}
		return e
	}
	for _, c := range []struct {
		zone, hint1, hint2 string
		why                HintsIgnored
		text               string
	}{
		{"a", "", "", HintsFollowed, ""},
		{"", "", "", HintsFollowed, ""},
		{"a", "a", "b", HintsFollowed, ""},
		{"a", "a", "", HintsMissing, "1 of 2 ready endpoints have no hint for a zone"},
		{"c", "a", "b", HintsElsewhere, "no ready endpoint has a hint for the zone of this node"},
		{"", "a", "b", HintsNodeWithoutZone, "this node has no zone (label topology.kubernetes.io/zone)"},
	} {
		p := port(t, model.Service{}, NodeInfo{Node: "n1", Zone: c.zone}, at("10.0.0.1", c.hint1), at("10.0.0.2", c.hint2))
		if p.Hints.Why != c.why || p.Hints.String() != c.text {
			t.Errorf("%+v: %d %q", c, p.Hints.Why, p.Hints)
		}
		if got, want := p.Explain(&p.Endpoints[1]) == "ready, without a hint", c.why == HintsMissing; got != want {
			t.Errorf("%+v: %s", c, p.Explain(&p.Endpoints[1]))
		}
	}
}
