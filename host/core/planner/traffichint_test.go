package planner

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// TestFrontendsHaveTheHintOfTheirPolicy, over TCP and UDP only. A policy with only a hint balances as the default rules do.
func TestFrontendsHaveTheHintOfTheirPolicy(t *testing.T) {
	s := testSettings()
	p := New(s, nativePlugins)
	svc := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
		Ports: []model.ServicePort{{Name: "tcp", Protocol: model.TCP, Port: 80, NodePort: 30080}, {Name: "udp", Protocol: model.UDP, Port: 80, NodePort: 30080},
			{Name: "sctp", Protocol: model.SCTP, Port: 80}},
	}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: svc.Name, Service: svc}, {Kind: model.Synced}})
	for i, hint := range []bool{false, true, false} {
		s.Policies = &policy.Set{Policies: map[string]*policy.Policy{"long": {Name: "long", LongLived: hint}}, Default: "long"}
		p.Configure(s)
		p.PlanNow(time.Unix(int64(1000+i), 0))
		if n := len(p.Current().Frontends); n != 8 {
			t.Fatalf("%d frontends, want 8", n)
		}
		for k, f := range p.Current().Frontends {
			if want := hint && k.Protocol != model.SCTP; f.LongLived != want {
				t.Errorf("step %d: %s: %t, want %t", i, k, f.LongLived, want)
			}
		}
	}
}

// TestSplitFrontendsHaveTheHintOfTheirOwnPolicy, not that of the backends, to which the same connections are not offloaded
// elsewhere.
func TestSplitFrontendsHaveTheHintOfTheirOwnPolicy(t *testing.T) {
	p := countedPlanner(needy(0), func(s *Settings) {
		s.Policies = &policy.Set{Policies: map[string]*policy.Policy{"long": {Name: "long", LongLived: true}},
			Bindings: []policy.Binding{{Selector: policy.Selector{{Key: "zoned", Op: policy.Exists}}, Policy: "long"}}}
	})
	for step, parent := range []string{"", "zoned", "plain", ""} {
		route := split(1)
		route.Route.Parents, route.Route.Backends[0].Service = []model.RouteParent{{Service: parent}}, map[string]string{"zoned": "plain", "plain": "zoned"}[parent]
		if parent == "" {
			route.Route = nil
		}
		p.Apply([]model.Change{route})
		p.PlanNow(time.Unix(int64(1000+step), 0))
		for _, f := range p.Current().Frontends {
			if name := f.Owner.Service.Name; f.LongLived != (name == "zoned") {
				t.Errorf("with a route at %q: the frontend of %s is offloaded: %t", parent, name, f.LongLived)
			}
			if name := f.Owner.Service.Name; name == parent && f.Pool.Endpoints[0].Addr != countedKey(map[string]int{"zoned": 1, "plain": 0}[parent]).Addr {
				t.Errorf("with a route at %q: connections go to %v", parent, f.Pool.Endpoints)
			}
		}
	}
}
