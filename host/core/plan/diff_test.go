package plan_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

func copyPlan(p *plan.Plan) *plan.Plan {
	return &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
}

func TestApplyOfDiffResultsInNextPlan(t *testing.T) {
	for seed := range uint64(200) {
		g := testgen.NewPlans(seed, testgen.PlanOptions{})
		prev := g.Plan()
		for step := range 10 {
			next := g.Next(prev)
			if step == 5 {
				next = g.Plan() // nothing in common by descent
			}
			before := plan.Format(prev)
			d := plan.Diff(prev, next)
			got := copyPlan(prev)
			got.Apply(d)
			if !got.Equal(next) || plan.Format(got) != plan.Format(next) {
				t.Fatalf("seed %d step %d:\n%s", seed, step, plan.FormatDiff(next, got))
			}
			if !slices.IsSortedFunc(d.Changes, func(a, b plan.Change) int { return a.Key.Compare(b.Key) }) {
				t.Fatalf("seed %d step %d: changes are not sorted", seed, step)
			}
			for _, c := range d.Changes {
				if c.Old != prev.Frontends[c.Key] || c.New != next.Frontends[c.Key] {
					t.Fatalf("seed %d step %d: %s: not the frontends of the plans", seed, step, c.Key)
				}
				if c.Old != nil && c.New != nil && plan.FormatFrontend(c.Old) == plan.FormatFrontend(c.New) {
					t.Fatalf("seed %d step %d: %s: a change that changes nothing", seed, step, c.Key)
				}
			}
			if plan.Format(prev) != before {
				t.Fatalf("seed %d step %d: Diff or Apply changed the plan before", seed, step)
			}
			prev = next
		}
	}
}

func TestDiffOfEqualPlansIsEmpty(t *testing.T) {
	for seed := range uint64(200) {
		// Two generators of one seed share no memory, so equality has to look inside.
		p, q := testgen.NewPlans(seed, testgen.PlanOptions{}).Plan(), testgen.NewPlans(seed, testgen.PlanOptions{}).Plan()
		if d := plan.Diff(p, q); !d.Empty() || !p.Equal(q) {
			t.Fatalf("seed %d:\n%s", seed, plan.FormatDiff(p, q))
		}
	}
}

// TestLostEndpointsMatchReference: those with a weight before the change and without one after it, in all pools of random
// frontends.
func TestLostEndpointsMatchReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	pool := func() (p plan.Pool) {
		for i := range byte(6) {
			if w := rng.IntN(3); rng.IntN(3) > 0 {
				p.Endpoints = append(p.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, i}), 80), Weight: uint16(w)})
			}
		}
		return p
	}
	random := func() *plan.Frontend {
		f := &plan.Frontend{Pool: pool()}
		switch outside := pool(); rng.IntN(6) {
		case 0:
			return nil
		case 1, 2:
			f.Outside = &outside
		}
		return f
	}
	taking := func(f *plan.Frontend) map[netip.AddrPort]bool {
		out := map[netip.AddrPort]bool{}
		for e := range f.AllEndpoints() {
			if e.Weight > 0 {
				out[e.Addr] = true
			}
		}
		return out
	}
	lost := 0
	for range 5000 {
		c := plan.Change{Old: random(), New: random()}
		want := map[netip.AddrPort]bool{}
		if c.Old != nil && c.New != nil {
			after := taking(c.New)
			for a := range taking(c.Old) {
				if !after[a] {
					want[a] = true
				}
				if c.New.Takes(a) != after[a] {
					t.Fatalf("%+v takes %s: %t", c.New, a, c.New.Takes(a))
				}
			}
		}
		got := map[netip.AddrPort]bool{}
		for _, a := range c.Lost() {
			got[a] = true
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%+v → %+v: lost %v, want %v", c.Old, c.New, got, want)
		}
		lost += len(want)
	}
	if lost == 0 {
		t.Error("no endpoint was lost")
	}
}

func TestDiffDetectsChangeOfEveryField(t *testing.T) {
	for name, break_ := range map[string]func(p *plan.Plan, f *plan.Frontend){
		"mark":          func(p *plan.Plan, _ *plan.Frontend) { p.Global.MasqueradeMark <<= 1 },
		"node ports":    func(p *plan.Plan, _ *plan.Frontend) { p.Global.NodePortAddrs = nil },
		"localhost":     func(p *plan.Plan, _ *plan.Frontend) { p.Global.LocalhostAddrs = nil },
		"pod sources":   func(p *plan.Plan, _ *plan.Frontend) { p.Global.PodSources = nil },
		"interfaces":    func(p *plan.Plan, _ *plan.Frontend) { p.Global.PodInterfaces = nil },
		"service CIDRs": func(p *plan.Plan, _ *plan.Frontend) { p.Global.ServiceCIDRs = nil },
		"kind":          func(_ *plan.Plan, f *plan.Frontend) { f.Kind = plan.ExternalIP },
		"owner":         func(_ *plan.Plan, f *plan.Frontend) { f.Owner.Port = "other" },
		"weight":        func(_ *plan.Plan, f *plan.Frontend) { f.Pool.Endpoints[0].Weight++ },
		"phase":         func(_ *plan.Plan, f *plan.Frontend) { f.Pool.Endpoints[0].Phase = plan.Draining },
		"deadline":      func(_ *plan.Plan, f *plan.Frontend) { f.Pool.Endpoints[0].Deadline = 1 },
		"verdict":       func(_ *plan.Plan, f *plan.Frontend) { f.Pool.Verdict = plan.Drop },
		"outside":       func(_ *plan.Plan, f *plan.Frontend) { f.Outside = nil },
		"outside pool":  func(_ *plan.Plan, f *plan.Frontend) { f.Outside.Verdict = plan.Reject },
		"masquerade":    func(_ *plan.Plan, f *plan.Frontend) { f.Masquerade = plan.MasqueradeNever },
		"affinity":      func(_ *plan.Plan, f *plan.Frontend) { f.Affinity++ },
		"flows":         func(_ *plan.Plan, f *plan.Frontend) { f.LongLived = !f.LongLived },
		"refused":       func(_ *plan.Plan, f *plan.Frontend) { f.RetryRefused = !f.RetryRefused },
		"outcomes":      func(_ *plan.Plan, f *plan.Frontend) { f.Outcomes = !f.Outcomes },
		"balance":       func(_ *plan.Plan, f *plan.Frontend) { f.Balance = plan.SourceHash },
		"source ranges": func(_ *plan.Plan, f *plan.Frontend) { f.SourceRanges = f.SourceRanges[:1] },
		"no ranges":     func(_ *plan.Plan, f *plan.Frontend) { f.SourceRanges = nil },
	} {
		t.Run(name, func(t *testing.T) {
			p, q := shopPlan(t), shopPlan(t)
			break_(q, q.Frontends[key(t, "203.0.113.7:80/TCP")])
			if plan.Diff(p, q).Empty() || p.Equal(q) {
				t.Error("not seen")
			}
		})
	}
}
