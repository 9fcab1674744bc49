package planner

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestExplainReturnsEndpointsOfLastDecision: they are stored packed, without the properties in EndpointSlices.
func TestExplainReturnsEndpointsOfLastDecision(t *testing.T) {
	checked := 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 5))
		p := New(testSettings(), nativePlugins)
		p.Apply([]model.Change{{Kind: model.Synced}})
		for range 40 {
			c := randomChange(r)
			if c.Slice != nil {
				for i := range c.Slice.Endpoints {
					c.Slice.Endpoints[i].Pod = c.Slice.Endpoints[i].Addr.String()
				}
			}
			p.Apply([]model.Change{c})
			p.PlanNow(time.Unix(1000, 0))
		}
		for _, name := range p.ServiceNames() {
			x, err := p.Explain(name)
			if err != nil {
				t.Fatal(err)
			}
			for i, d := range x.Decisions {
				if x.Splits[i] != nil {
					continue // TestSharesOfRoutes
				}
				want := eligibility.SelectEndpoints(x.Service, &d.Port.Spec, d.Port.Family, p.cluster.Slices[name], p.nodeInfo)
				if len(p.routes.parents[name]) > 0 {
					want.Use(true, p.localWanted(name))
				}
				if d.Port.Name != want.Name || d.Port.Topology != want.Topology || len(d.Port.Endpoints) != len(want.Endpoints) {
					t.Fatalf("seed %d: %+v, want %+v", seed, d.Port, want)
				}
				for i := range want.Endpoints {
					got, want := &d.Port.Endpoints[i], &want.Endpoints[i]
					if got.Addr != want.Addr || got.Pod != want.Pod {
						t.Fatalf("seed %d: %+v, want %+v", seed, got, want)
					}
					is, shall := endpointFlags(got), endpointFlags(want)
					for bit := range is {
						if *is[bit] != *shall[bit] {
							t.Fatalf("seed %d: %+v, want %+v", seed, got, want)
						}
					}
					if x.Policy != nil {
						checked++
					}
				}
			}
		}
	}
	if checked < 100 {
		t.Fatalf("only %d endpoints of Services with a policy", checked)
	}
}
