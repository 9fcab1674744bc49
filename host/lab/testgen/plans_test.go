package testgen_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

func TestSameSeedReturnsSamePlans(t *testing.T) {
	run := func(seed uint64) string {
		g := testgen.NewPlans(seed, testgen.PlanOptions{})
		p := g.Plan()
		return plan.Format(p) + plan.Format(g.Next(g.Next(p)))
	}
	first, again, other := run(1), run(1), run(2)
	if first != again || first == other {
		t.Error("plans do not depend on the seed only")
	}
}

func TestPlansAreValidAndOfEveryKind(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(300) {
		g := testgen.NewPlans(seed, testgen.PlanOptions{})
		p := g.Plan()
		for range 8 {
			before := plan.Format(p)
			next := g.Next(p)
			if plan.Format(p) != before {
				t.Fatalf("seed %d: Next changed its argument", seed)
			}
			if err := plan.Validate(next); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, plan.Format(next))
			}
			seen[fmt.Sprintf("changes %v", !p.Equal(next))]++
			for k, f := range next.Frontends {
				for _, what := range []string{
					k.Family().String(), k.Protocol.String(), f.Kind.String(), "masquerade " + f.Masquerade.String(), f.Balance.String(), "pool " + f.Pool.Verdict.String(),
					fmt.Sprintf("affinity %v", f.Affinity > 0), fmt.Sprintf("ranges %v", f.SourceRanges != nil), fmt.Sprintf("unnamed %v", f.Owner.Port == ""),
				} {
					seen[what]++
				}
				if f.Outside != nil {
					seen["outside "+f.Outside.Verdict.String()]++
				}
				for _, m := range f.Pool.Endpoints {
					seen[m.Phase.String()]++
					seen[fmt.Sprintf("deadline %v", m.Deadline > 0)]++
					if m.Weight == 0 || m.Weight == 65535 {
						seen[fmt.Sprintf("weight %d", m.Weight)]++
					}
				}
			}
			p = next
		}
	}
	for _, what := range []string{
		"IPv4", "IPv6", "TCP", "UDP", "SCTP", "ClusterIP", "ExternalIP", "LoadBalancer", "NodePort",
		"masquerade never", "masquerade outside", "masquerade always", "masquerade from-node",
		"random", "round-robin", "source-hash", "least-connections", "pool forward", "pool reject", "pool drop",
		"outside forward", "outside drop", "affinity true", "affinity false", "ranges true", "ranges false", "unnamed true", "unnamed false",
		"active", "draining", "deadline true", "weight 0", "weight 65535", "changes true", "changes false",
	} {
		if seen[what] < 20 {
			t.Errorf("%s: seen %d times", what, seen[what])
		}
	}
}

func TestTargetsFamiliesAndGlobalAreKept(t *testing.T) {
	global := plan.Global{MasqueradeMark: 8}
	target := netip.MustParseAddrPort("10.9.9.9:99")
	for seed := range uint64(50) {
		g := testgen.NewPlans(seed, testgen.PlanOptions{Global: &global, Targets: []netip.AddrPort{target}, Families: []model.Family{model.IPv4}, Protocols: []model.Protocol{model.UDP}})
		p := g.Plan()
		for range 5 {
			p = g.Next(p)
			if !p.Global.Equal(&global) {
				t.Fatalf("seed %d:\n%s", seed, plan.Format(p))
			}
			for k, f := range p.Frontends {
				if k.Family() != model.IPv4 || k.Protocol != model.UDP {
					t.Fatalf("seed %d: %s", seed, k)
				}
				for _, m := range f.Pool.Endpoints {
					if m.Addr != target {
						t.Fatalf("seed %d: %s", seed, m.Addr)
					}
				}
			}
		}
	}
}
