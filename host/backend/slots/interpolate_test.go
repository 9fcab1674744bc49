package slots

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestInterpolateReachesPoolInValidParts: between any two pools, also when another one is wanted meanwhile, each part has the
// slots that its weights say, and each endpoint a number of slots between those that it had and those that it shall have, in
// proportion to the part.
func TestInterpolateReachesPoolInValidParts(t *testing.T) {
	parts, notFound := 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 3))
		now, to := randomWeights(r), randomWeights(r)
		n := 64 + r.IntN(200)
		for steps, other := 0, r.IntN(30); ; steps++ {
			if steps == other {
				to = randomWeights(r)
			}
			had, want := slotsByAddr(&now), slotsByAddr(&to)
			next := interpolate(&now, &to, n)
			f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: model.TCP}, Kind: plan.ExternalIP,
				Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Protocol: model.TCP}, Pool: next}
			if err := plan.Validate(&plan.Plan{Global: plan.Global{MasqueradeMark: 1}, Frontends: map[plan.Key]*plan.Frontend{f.Key: f}}); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, steps, err)
			}
			has, all, moved := slotsByAddr(&next), 0, 0
			for a := range len(has) {
				all += difference(had[a], want[a])
			}
			for a := range len(has) {
				d, m := want[a]-had[a], has[a]-had[a]
				if m*d < 0 || difference(m, 0) > difference(d, 0) {
					t.Fatalf("seed %d, step %d: endpoint %d had %d slots, has %d, shall have %d", seed, steps, a, had[a], has[a], want[a])
				}
				if moved += difference(m, 0); all > n && !next.Equal(&to) && difference(m*all, d*n) > 10*all {
					t.Fatalf("seed %d, step %d: endpoint %d moved %d of %d slots, all endpoints %d of %d", seed, steps, a, m, d, n, all)
				}
			}
			if all > n && next.Equal(&to) {
				notFound++
				break
			}
			if all <= n {
				if !next.Equal(&to) {
					t.Fatalf("seed %d, step %d: not the wanted pool, although %d slots differ", seed, steps, all)
				}
				break
			}
			if moved > n+2 || moved == 0 {
				t.Fatalf("seed %d, step %d: %d slots have changed, not %d", seed, steps, moved, n)
			}
			for i, e := range next.Endpoints {
				if int(e.Weight) != has[index(e.Addr)] {
					t.Fatalf("seed %d, step %d: endpoint %d has weight %d and %d slots", seed, steps, i, e.Weight, has[index(e.Addr)])
				}
			}
			if steps > 60 {
				t.Fatalf("seed %d: no end", seed)
			}
			parts++
			now = next
		}
	}
	if parts < 1000 || notFound > 1 {
		t.Errorf("%d parts, %d not found", parts, notFound)
	}
}

// TestInterpolateBeginsWithSharesOfResult: a new pool has the shares that it shall have from the beginning, as exactly as its
// slots allow.
func TestInterpolateBeginsWithSharesOfResult(t *testing.T) {
	to := plan.Pool{Verdict: plan.Forward, Endpoints: []plan.Endpoint{{Addr: interpolated(1), Weight: 300}, {Addr: interpolated(2), Weight: 97}, {Addr: interpolated(3), Weight: 603}}}
	got := interpolate(&plan.Pool{}, &to, 100)
	slots := slotsByAddr(&got)
	if want := [4]int{0, 30, 9, 61}; [4]int(slots[:4]) != want {
		t.Errorf("%v", got)
	}
}

func randomWeights(r *rand.Rand) plan.Pool {
	out := plan.Pool{Verdict: plan.Reject}
	addrs := []int{3, 10, 60, 900}[r.IntN(4)]
	most := []int{1, 3, 50, 1000, 65535}[r.IntN(5)]
	for i := range addrs {
		if r.IntN(3) == 0 {
			continue
		}
		e := plan.Endpoint{Addr: interpolated(i)}
		if r.IntN(5) == 0 {
			e.Phase = plan.Draining
		} else {
			e.Weight, out.Verdict = uint16(1+r.IntN(most)), plan.Forward
			if r.IntN(4) == 0 {
				e.Weight = uint16(most)
			}
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out
}

func interpolated(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
}

func index(a netip.AddrPort) int {
	b := a.Addr().As4()
	return int(b[2])<<8 | int(b[3])
}

// slotsByAddr returns the slots that a data plane has for a pool.
func slotsByAddr(p *plan.Pool) (out [900]int) {
	slots := plan.Normalize(&plan.Plan{Frontends: map[plan.Key]*plan.Frontend{{}: {Pool: *p}}}, plan.Caps{Ratios: true, MaxTotal: Max, Balances: []plan.Balance{plan.Random}})
	for _, e := range slots.Frontends[plan.Key{}].Pool.Endpoints {
		out[index(e.Addr)] = int(e.Weight)
	}
	return out
}

func difference(a, b int) int { return max(a-b, b-a) }
