package slots

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// sourceAt returns one of 1,200 sources, of which random ranges contain the first 1,024.
func sourceAt(family model.Family, i int) netip.Addr {
	if family == model.IPv4 {
		return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{32, 1, 14: byte(i >> 8), 15: byte(i)})
}

// randomSources returns up to some 400 ranges, which overlap those of other calls.
func randomSources(r *rand.Rand, family model.Family) []netip.Prefix {
	if r.IntN(5) == 0 {
		return nil
	}
	var out []netip.Prefix
	for range 1 + r.IntN(600) {
		a := sourceAt(family, r.IntN(1024))
		bits := a.BitLen()
		if r.IntN(16) == 0 {
			bits -= r.IntN(9)
		}
		out = append(out, netip.PrefixFrom(a, bits))
	}
	if r.IntN(16) == 0 {
		out = append(out, everySource[family]...)
	}
	return plan.NormalizePrefixes(out)
}

// allows reports whether a frontend that may be nil allows a source.
func allows(f *plan.Frontend, source netip.Addr) bool {
	return f != nil && (f.SourceRanges == nil || slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return p.Contains(source) }))
}

// TestSourceRangesChangeInParts: between any two frontends, also when another one is wanted meanwhile, each part is valid and
// changes a bounded number of ranges. It is open to each source that the frontends before and after the change allow, and to none
// that neither allows.
func TestSourceRangesChangeInParts(t *testing.T) {
	parts, opened, closed, deleted := 0, 0, 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		family, addr := model.IPv4, netip.MustParseAddr("192.0.2.1")
		if seed%3 == 0 {
			family, addr = model.IPv6, netip.MustParseAddr("2001:db8::1")
		}
		balance := plan.Balance(r.IntN(int(plan.LeastConnections) + 1))
		random := func() *plan.Frontend {
			if r.IntN(6) == 0 {
				return nil
			}
			f := &plan.Frontend{Key: plan.Key{Addr: addr, Port: 80, Protocol: model.TCP}, Kind: plan.LoadBalancer, Balance: balance,
				Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Protocol: model.TCP}, Pool: plan.Pool{Verdict: plan.Drop},
				SourceRanges: randomSources(r, family)}
			if family == model.IPv4 && r.IntN(2) == 0 {
				f.Pool = randomPool(r, 1000, 1)
			}
			return f
		}
		now, to := random(), random()
		for steps, other := 0, r.IntN(6); now != to; steps++ {
			if steps == other {
				to = random()
			}
			n := max(64, r.IntN(200))
			if now == to {
				break
			}
			next := part(now, to, n*element)
			if next != nil {
				if err := plan.Validate(&plan.Plan{Global: plan.Global{MasqueradeMark: 1}, Frontends: map[plan.Key]*plan.Frontend{next.Key: next}}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if changed := rangeChanges(sourcesOf(now), sourcesOf(next)); changed > n+n/4 {
				t.Fatalf("seed %d, step %d: %d ranges changed, more than %d", seed, steps, changed, n)
			}
			for i := range 1200 {
				source := sourceAt(family, i)
				switch before, after, is := allows(now, source), allows(to, source), allows(next, source); {
				case is && !before && !after:
					t.Fatalf("seed %d, step %d: it is open to %s", seed, steps, source)
				case !is && before && after:
					t.Fatalf("seed %d, step %d: it is closed to %s", seed, steps, source)
				case is && !before:
					opened++
				case !is && before:
					closed++
				}
			}
			if next != to {
				parts++
				if to == nil {
					deleted++
				}
			}
			if steps == 100 {
				t.Fatalf("seed %d: no end", seed)
			}
			now = next
		}
	}
	if parts < 500 || opened < 1000 || closed < 1000 || deleted < 40 {
		t.Errorf("only %d parts, %d of deletions; sources: %d opened, %d closed", parts, deleted, opened, closed)
	}
}
