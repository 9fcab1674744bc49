package planner

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestRefusedConnectionsOfTCPAreRetried: the frontends of a Service follow what it asks for, over TCP only.
func TestRefusedConnectionsOfTCPAreRetried(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	for i, retry := range []bool{true, false, true} {
		s := &model.Service{
			Name: model.Name{Namespace: "shop", Name: "web"}, RetryRefused: retry,
			ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
			Ports: []model.ServicePort{{Name: "tcp", Protocol: model.TCP, Port: 80, NodePort: 30080}, {Name: "udp", Protocol: model.UDP, Port: 80, NodePort: 30080},
				{Name: "sctp", Protocol: model.SCTP, Port: 80}},
		}
		p.Apply([]model.Change{{Kind: model.ServiceKind, Name: s.Name, Service: s}, {Kind: model.Synced}})
		p.PlanNow(time.Unix(int64(1000+i), 0))
		if n := len(p.Current().Frontends); n != 13 {
			t.Fatalf("%d frontends, want 13", n)
		}
		for k, f := range p.Current().Frontends {
			if want := retry && k.Protocol == model.TCP; f.RetryRefused != want {
				t.Errorf("step %d: %s: %t, want %t", i, k, f.RetryRefused, want)
			}
		}
	}
}
