package planner_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// TestOverviewCountsWhatThePlanHas compares the overview of random clusters with their plans and explanations.
func TestOverviewCountsWhatThePlanHas(t *testing.T) {
	for seed := range uint64(20) {
		c := testgen.NewCluster(seed, testgen.ClusterOptions{})
		p := planner.New(c.Settings, nil)
		p.Apply(c.Changes)
		p.PlanNow(time.Unix(1_700_000_000, 0))
		all := p.Overview("")
		if names := p.ServiceNames(); len(names) != len(all) {
			t.Fatalf("seed %d: %d Services, want %d", seed, len(all), len(names))
		}
		frontends := 0
		for i := range all {
			o := &all[i]
			if i > 0 && all[i-1].Name.Compare(o.Name) >= 0 {
				t.Errorf("seed %d: %s after %s", seed, o.Name, all[i-1].Name)
			}
			with := map[netip.AddrPort]bool{}
			n := 0
			for key, f := range p.Current().Frontends {
				if f.Owner.Service != o.Name {
					continue
				}
				n++
				if !slices.Contains(o.Frontends, key) {
					t.Errorf("seed %d: %s: no frontend %s in %v", seed, o.Name, key, o.Frontends)
				}
				for _, pool := range []*plan.Pool{&f.Pool, f.Outside} {
					for j := 0; pool != nil && j < len(pool.Endpoints); j++ {
						if pool.Endpoints[j].Weight > 0 {
							with[pool.Endpoints[j].Addr] = true
						}
					}
				}
			}
			if frontends += n; n != len(o.Frontends) || len(with) != o.Endpoints {
				t.Errorf("seed %d: %+v; want %d frontends and %d endpoints", seed, *o, n, len(with))
			}
			x, err := p.Explain(o.Name)
			if err != nil || x.Contested > 0 && o.Omitted == 0 {
				t.Errorf("seed %d: %+v: %d conflicts, %v", seed, *o, x.Contested, err)
			}
		}
		if frontends != len(p.Current().Frontends) {
			t.Errorf("seed %d: %d frontends, want %d", seed, frontends, len(p.Current().Frontends))
		}
		some := p.Overview(all[0].Name.Namespace)
		if len(some) == 0 || slices.ContainsFunc(some, func(o planner.ServiceOverview) bool { return o.Name.Namespace != all[0].Name.Namespace }) {
			t.Errorf("seed %d: %v", seed, some)
		}
	}
}
