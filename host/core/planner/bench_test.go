package planner

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// BenchmarkPolicyUpdate changes an endpoint of one of 10,000 Services with a policy of one plugin, and of as many whose policy
// has a shadow too.
func BenchmarkPolicyUpdate(b *testing.B) {
	for name, shadow := range map[string][]policy.Step{"plugin": nil, "plugin and shadow": {{Plugin: "by-zone/shadow"}}} {
		b.Run(name, func(b *testing.B) {
			settings := testSettings()
			settings.Policies.Policies["zone"].Shadow = shadow
			settings.Policies.Default = "zone"
			benchmarkUpdates(b, settings)
		})
	}
}

func benchmarkUpdates(b *testing.B, settings Settings) {
	p := New(settings, nativePlugins)
	p.Apply(manyServices(10_000, 10))
	p.PlanNow(time.Unix(1000, 0))
	var states [2][]model.Change
	for i := range states {
		for j := range 1000 {
			name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", j*10)}
			states[i] = append(states[i], model.Change{Kind: model.SliceKind, Name: name, Slice: slice(name, 10+i)})
		}
	}
	n := 0
	for b.Loop() {
		p.Apply(states[n/1000%2][n%1000 : n%1000+1])
		p.PlanNow(time.Unix(1000, 0))
		n++
	}
}

// BenchmarkLargePool makes a plugin decide again for 10,000 endpoints, created and flipped, and reports the longest Plan.
func BenchmarkLargePool(b *testing.B) {
	name := model.Name{Namespace: "shop", Name: "giant"}
	svc := &model.Service{Name: name, Labels: map[string]string{"zoned": ""}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}}}
	changes := []model.Change{{Kind: model.ServiceKind, Name: name, Service: svc}}
	for i := range 100 {
		s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: fmt.Sprint("giant-", i)}, Service: name, Family: model.IPv4,
			Ports: []model.SlicePort{{Name: "p0", Protocol: model.TCP, Port: 8080}}}
		for j := range 100 {
			k := i*100 + j
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(k >> 8), byte(k)}), Ready: true, Serving: true,
				Node: fmt.Sprint("node-", k%1000), Zone: fmt.Sprint("zone-", k%3), Pod: fmt.Sprint("giant-", k)})
		}
		changes = append(changes, model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s})
	}
	revision := 0
	p := New(testSettings(), func(string) (policy.Plugin, error) {
		return flippingPlugin{revision: &revision, weights: [2]uint16{1, 1}}, nil
	})
	planInSteps(p)
	p.Apply([]model.Change{{Kind: model.Synced}})
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	longest, plans := time.Duration(0), 0
	for b.Loop() {
		revision++
		p.Apply(changes)
		p.PluginsReloaded()
		for remaining := 1; remaining > 0; plans++ {
			begin := time.Now()
			remaining = p.PlanNow(now).Remaining
			longest = max(longest, time.Since(begin))
		}
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "longest-ms")
	b.ReportMetric(float64(plans)/float64(b.N), "plans/op")
}
