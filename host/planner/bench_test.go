package planner

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
)

// BenchmarkPolicyUpdate changes an endpoint of one of 10,000 Services with a policy of one plugin, and of as many whose policy has a shadow too.
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
	p.Plan(time.Unix(1000, 0))
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
		p.Plan(time.Unix(1000, 0))
		n++
	}
}
