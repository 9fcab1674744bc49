package planner

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// TestPoolsChangeInValidParts: between any two pools, each part is valid, differs by a bounded number of endpoints from the one
// before, and has an endpoint if both have.
func TestPoolsChangeInValidParts(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 31))
		random := func() *plan.Frontend {
			if r.IntN(6) == 0 {
				return nil
			}
			pool := func() plan.Pool {
				out := plan.Pool{Verdict: plan.Reject}
				for i := range 1000 {
					if r.IntN(3) > 0 {
						continue
					}
					e := plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: uint16(r.IntN(2))}
					if e.Weight == 0 {
						e.Phase = plan.Draining
					} else {
						out.Verdict = plan.Forward
					}
					out.Endpoints = append(out.Endpoints, e)
				}
				if r.IntN(5) == 0 {
					return plan.Pool{Verdict: plan.Drop}
				}
				return out
			}
			f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: model.TCP}, Kind: plan.ExternalIP,
				Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Protocol: model.TCP}, Pool: pool()}
			if r.IntN(2) == 0 {
				outside := pool()
				f.Outside = &outside
			}
			return f
		}
		from, to := random(), random()
		now := from
		for steps := 0; now != to; steps++ {
			next := part(now, to, &budget{left: r.IntN(200) * elementCost})
			if next != nil {
				if err := plan.Validate(&plan.Plan{Global: plan.Global{MasqueradeMark: 1}, Frontends: map[plan.Key]*plan.Frontend{next.Key: next}}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if from != nil && to != nil && from.Pool.Total() > 0 && to.Pool.Total() > 0 && next.Pool.Total() == 0 {
					t.Fatalf("seed %d: no endpoint", seed)
				}
			}
			if steps == 100 {
				t.Fatalf("seed %d: no end", seed)
			}
			now = next
		}
	}
}

// A part of a pool with source hash would have another table, which sends clients elsewhere.
func TestPoolWithSourceHashIsNotDivided(t *testing.T) {
	f := &plan.Frontend{Balance: plan.SourceHash, Pool: plan.Pool{Verdict: plan.Forward}}
	for i := range 1000 {
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: 1})
	}
	half := &plan.Frontend{Balance: plan.SourceHash, Pool: plan.Pool{Verdict: plan.Forward, Endpoints: f.Pool.Endpoints[:500]}}
	for _, change := range [][2]*plan.Frontend{{nil, f}, {half, f}, {f, half}, {f, nil}} {
		if got := part(change[0], change[1], &budget{}); got != change[1] {
			t.Errorf("%d endpoints are in a part", len(got.Pool.Endpoints))
		}
	}
}

// TestLargePoolIsPlannedInParts: each step changes a bounded number of endpoints, and the result is that of one step.
func TestLargePoolIsPlannedInParts(t *testing.T) {
	name := model.Name{Namespace: "shop", Name: "giant"}
	svc := &model.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}}}
	endpoints := func(from, n int) []model.Change {
		var out []model.Change
		for i := range 10 {
			s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: fmt.Sprint("giant-", i)}, Service: name, Family: model.IPv4,
				Ports: []model.SlicePort{{Name: "p0", Protocol: model.TCP, Port: 8080}}}
			for j := range n / 10 {
				k := from + i*n/10 + j
				s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(k >> 8), byte(k)}), Ready: true, Serving: true})
			}
			out = append(out, model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s})
		}
		return out
	}
	now := time.Unix(1000, 0)
	p := New(testSettings(), nativePlugins)
	p.PlanInBatches()
	p.Apply([]model.Change{{Kind: model.Synced}})
	p.Plan(now)
	all := []model.Change{{Kind: model.Synced}}
	for _, changes := range [][]model.Change{
		append(endpoints(0, 5000), model.Change{Kind: model.ServiceKind, Name: name, Service: svc}),
		endpoints(2500, 5000),
		{{Kind: model.ServiceKind, Name: name}},
	} {
		p.Apply(changes)
		all = append(all, changes...)
		for steps := 1; ; steps++ {
			step := p.Plan(now)
			changed := 0
			for _, c := range step.Delta.Changes {
				old, f := c.Old, c.New
				if old == nil {
					old = &plan.Frontend{}
				}
				if f == nil {
					f = &plan.Frontend{}
				}
				changed += poolChanges(&old.Pool, &f.Pool)
			}
			if changed > 4*initialStepCost/elementCost {
				t.Fatalf("step %d changes %d endpoints", steps, changed)
			}
			if step.Remaining == 0 {
				t.Logf("%d steps", steps)
				break
			} else if steps == 1000 {
				t.Fatal("no end")
			}
		}
		scratch := New(testSettings(), nativePlugins)
		scratch.Apply(all)
		scratch.Plan(now)
		if !p.Current().Equal(scratch.Current()) {
			t.Fatalf("in parts\n%s\nat once\n%s", plan.Format(p.Current()), plan.Format(scratch.Current()))
		}
	}
}

// TestPartsOfALargePoolAreNotCopied counts what a step of the creation and of the deletion of a large pool allocates.
func TestPartsOfALargePoolAreNotCopied(t *testing.T) {
	f := &plan.Frontend{Pool: plan.Pool{Verdict: plan.Forward}}
	for i := range 20_000 {
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: 1})
	}
	for _, to := range []*plan.Frontend{f, nil} {
		now := &plan.Frontend{Pool: plan.Pool{Verdict: plan.Forward, Endpoints: f.Pool.Endpoints[:10_000]}}
		if bytes := allocatedBytes(func() { now = part(now, to, &budget{left: 200 * elementCost}) }); bytes > 10_000 {
			t.Errorf("%d bytes for a part of %d endpoints", bytes, len(now.Pool.Endpoints))
		}
	}
}

func allocatedBytes(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
