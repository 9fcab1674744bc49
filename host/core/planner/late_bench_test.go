package planner

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// BenchmarkLateAnswer plans a Service with the answer of one of its ports, which came after the Plan that asked for it.
func BenchmarkLateAnswer(b *testing.B) {
	for _, of := range []struct{ ports, endpoints int }{{1, 10}, {1, 100}, {1, 1000}, {10, 10}, {10, 100}} {
		b.Run(fmt.Sprintf("%d ports, %d endpoints", of.ports, of.endpoints), func(b *testing.B) {
			name := model.Name{Namespace: "shop", Name: "web"}
			changes := portedService(name, netip.MustParseAddr("10.96.0.1"), of.ports)
			ports := changes[1].Slice.Ports
			changes[1].Slice = slice(name, of.endpoints)
			changes[1].Slice.Ports = ports
			revision := 0
			p := New(testSettings(), func(string) (policy.Plugin, error) {
				return flippingPlugin{revision: &revision, weights: [2]uint16{1, 2}}, nil
			})
			p.Apply(append(changes, ownNode("z0"), model.Change{Kind: model.Synced}))
			now := time.Unix(1000, 0)
			p.PlanNow(now)
			for b.Loop() {
				b.StopTimer()
				revision++
				p.PluginsReloaded()
				calls := p.Plan(now).Calls
				p.Plan(now)
				for _, c := range calls {
					c.Do()
				}
				p.Deliver(calls[1:], now)
				p.Plan(now)
				now = now.Add(time.Second)
				p.Plan(now)
				b.StartTimer()
				p.Deliver(calls[:1], now)
				if r := p.Plan(now); r.Planned != 1 {
					b.Fatal(r.Planned)
				}
			}
		})
	}
}
