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
