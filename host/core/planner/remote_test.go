package planner

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestRemoteEndpointsAreThoseOfOtherNodes, not those without a nodeName. Another nodeName is a change of the frontend.
func TestRemoteEndpointsAreThoseOfOtherNodes(t *testing.T) {
	p, name := New(testSettings(), nativePlugins), model.Name{Namespace: "shop", Name: "web"}
	svc := &model.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}
	slice := func(nodes ...string) model.Change {
		s := &model.EndpointSlice{Name: name, Service: name, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
		for i, n := range nodes {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: countedKey(i).Addr.Addr(), Node: n, Ready: true, Serving: true})
		}
		return model.Change{Kind: model.SliceKind, Name: name, Slice: s}
	}
	p.Apply([]model.Change{{Kind: model.Synced}, {Kind: model.ServiceKind, Name: name, Service: svc}})
	for i, nodes := range [][]string{{"n0", "n1", "", "n0.example"}, {"n1", "n1", "n1", "n1"}, {"", "n0", "n1", "n0"}} {
		p.Apply([]model.Change{slice(nodes...)})
		if res := p.PlanNow(time.Unix(int64(1000+i), 0)); len(res.Delta.Changes) != 1 {
			t.Errorf("step %d: %d frontends changed", i, len(res.Delta.Changes))
		}
		for _, f := range p.Current().Frontends {
			for j, e := range f.Pool.Endpoints {
				if want := nodes[j] != "n0" && nodes[j] != ""; e.Remote != want {
					t.Errorf("step %d: endpoint %s on node %q is remote: %t", i, e.Addr, nodes[j], e.Remote)
				}
			}
			if len(f.Pool.Endpoints) != len(nodes) {
				t.Errorf("step %d: endpoints %v", i, f.Pool.Endpoints)
			}
		}
	}
}

// TestSplitEndpointsAreRemoteIfAllSlicesSaySo: zoned and plain share an endpoint, and connections to plain are split over both.
func TestSplitEndpointsAreRemoteIfAllSlicesSaySo(t *testing.T) {
	p := countedPlanner(needy(0), nil)
	route := split(1, 1)
	route.Route.Parents, route.Route.Backends[0].Service, route.Route.Backends[1].Service = []model.RouteParent{{Service: "plain"}}, "zoned", "plain"
	p.Apply([]model.Change{route})
	for i, c := range []struct {
		zoned, plain string // nodes of the shared endpoint
		want         bool
	}{{"n1", "n2", true}, {"n1", "", false}, {"", "n1", false}, {"n1", "n0", false}, {"n0", "n1", false}, {"n0", "", false}, {"", "n0", false}, {"", "", false}} {
		for j, node := range []string{c.zoned, c.plain} {
			name := model.Name{Namespace: "shop", Name: []string{"zoned", "plain"}[j]}
			p.Apply([]model.Change{{Kind: model.SliceKind, Name: name, Slice: &model.EndpointSlice{
				Name: name, Service: name, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
				Endpoints: []model.SliceEndpoint{{Addr: countedKey(1).Addr.Addr(), Node: node, Ready: true, Serving: true}},
			}}})
		}
		p.PlanNow(time.Unix(int64(1000+i), 0))
		for _, f := range p.Current().Frontends {
			if f.Owner.Service.Name == "plain" && (len(f.Pool.Endpoints) != 1 || f.Pool.Endpoints[0].Remote != c.want) {
				t.Errorf("on nodes %q and %q: %+v", c.zoned, c.plain, f.Pool.Endpoints)
			}
		}
	}
}
