package slots

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestPoolsChangeInValidParts: between any two frontends that fit, also when another one is wanted meanwhile, each part is valid,
// fits, changes a bounded number of slots, and has an endpoint with weight if the wanted one has. Where the weights of an
// endpoint are not interpolated, it has its old or its new one, of which more than one may not count.
func TestPoolsChangeInValidParts(t *testing.T) {
	weighted, fewAndMany := 0, 0
	caps := plan.Caps{Ratios: true, MaxTotal: Max, MaxEndpoints: 4000, Balances: []plan.Balance{plan.Random}}
	fit := func(f *plan.Frontend) *plan.Frontend { x := plan.NewFitter(&caps); return x.Fit(f) }
	seeds, enough := uint64(400), 50
	if testing.Short() {
		seeds, enough = 100, 12
	}
	for seed := range seeds {
		r, known := rand.New(rand.NewPCG(seed, 31)), map[*plan.Pool]*indexedPool{}
		addresses, maxWeight := []int{1000}, 1
		if seed%2 == 0 {
			addresses, maxWeight = []int{100, 1500, 4000}, 1+r.IntN(3)*r.IntN(1000)
		}
		random := func() *plan.Frontend {
			if r.IntN(6) == 0 {
				return nil
			}
			pool := func() plan.Pool { return randomPool(r, addresses[r.IntN(len(addresses))], maxWeight) }
			f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: model.TCP}, Kind: plan.ExternalIP,
				Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Protocol: model.TCP}, Pool: pool()}
			if r.IntN(2) == 0 {
				outside := pool()
				f.Outside = &outside
			}
			return fit(f)
		}
		now, to := random(), random()
		for steps, other := 0, r.IntN(10); now != to; steps++ {
			if steps == other {
				to = random()
			}
			n := max(64, r.IntN(200))
			next := part(now, to, n*element)
			if next != nil {
				if err := plan.Validate(&plan.Plan{Global: plan.Global{MasqueradeMark: 1}, Frontends: map[plan.Key]*plan.Frontend{next.Key: next}}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				bare := *next
				if bare.Degraded = nil; fit(&bare) != &bare {
					t.Fatalf("seed %d, step %d: the data plane has to round weights, or leave out endpoints", seed, steps)
				}
			}
			if next != to && maxWeight > 1 {
				weighted++
			}
			for scope := range 2 {
				if scope == 1 && (to == nil || to.Outside == nil) {
					continue // the pool goes at once: it has the endpoints on this node only
				}
				few, err := checkPart(indexed(known, poolOf(now, scope)), indexed(known, poolOf(next, scope)), indexed(known, poolOf(to, scope)), n)
				if err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, steps, err)
				}
				if few {
					fewAndMany++
				}
			}
			if steps == 300 {
				t.Fatalf("seed %d: no end", seed)
			}
			now = next
		}
	}
	if weighted < 10*enough || fewAndMany < enough {
		t.Errorf("only %d parts with weights, %d from a pool of few endpoints to one of many or back", weighted, fewAndMany)
	}
}

func randomPool(r *rand.Rand, addresses, maxWeight int) plan.Pool {
	if r.IntN(5) == 0 {
		return plan.Pool{Verdict: plan.Drop}
	}
	out := plan.Pool{Verdict: plan.Reject}
	for i := range addresses {
		if r.IntN(3) == 0 {
			continue
		}
		e := plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)}
		if r.IntN(2) == 0 {
			e.Phase = plan.Draining
		} else {
			e.Weight, out.Verdict = uint16(1+r.IntN(maxWeight)), plan.Forward
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out
}

// poolOf returns a pool of a frontend, which may be nil.
func poolOf(f *plan.Frontend, scope int) *plan.Pool {
	switch {
	case f == nil:
		return &plan.Pool{}
	case scope == 0:
		return &f.Pool
	}
	return orEmpty(f.Outside)
}

// indexedPool is a pool with the slots that a backend gives to its endpoints, by the endpoints' addresses.
type indexedPool struct {
	pool      *plan.Pool
	endpoints [4000]plan.Endpoint
	slots     [4000]int
	n         int // endpoints that have any slot
}

// indexed returns a pool's index, once for each pool: the next part begins with the last one.
func indexed(known map[*plan.Pool]*indexedPool, pool *plan.Pool) *indexedPool {
	if known[pool] != nil {
		return known[pool]
	} else if len(known) > 10 {
		clear(known)
	}
	x := &indexedPool{pool: pool}
	at := func(e plan.Endpoint) int { a := e.Addr.Addr().As4(); return int(a[2])<<8 | int(a[3]) }
	for _, e := range pool.Endpoints {
		x.endpoints[at(e)] = e
	}
	f := plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: model.TCP}, Kind: plan.ClusterIP, Pool: *pool}
	p := plan.Normalize(&plan.Plan{Frontends: map[plan.Key]*plan.Frontend{f.Key: &f}},
		plan.Caps{Ratios: true, MaxTotal: Max, MaxEndpoints: 65536, Balances: []plan.Balance{plan.Random}})
	for _, e := range p.Frontends[f.Key].Pool.Endpoints {
		if e.Weight > 0 {
			x.n++
		}
		x.slots[at(e)] = int(e.Weight)
	}
	known[pool] = x
	return x
}

// checkPart compares a pool on the way from one to another with both, endpoint by endpoint. It reports whether few endpoints have
// weight in one of the two, and many in the other one.
func checkPart(from, part, to *indexedPool, n int) (fewAndMany bool, err error) {
	before, after := from.n, to.n
	fewAndMany = min(before, after) > 0 && min(before, after) < Max && max(before, after) >= Max
	inSlots := before < Max && after < Max // see interpolate and its test
	counts := func(e plan.Endpoint) plan.Endpoint {
		e.Weight = min(1, e.Weight)
		return e
	}
	endpoints, slots := 0, 0
	for a, now := range &part.endpoints {
		old, wanted := from.endpoints[a], to.endpoints[a]
		was, is := counts(old), counts(now)
		if !inSlots && is != was && is != counts(wanted) {
			return fewAndMany, fmt.Errorf("%+v: it was %+v and shall be %+v", now, old, wanted)
		}
		if was.Weight != is.Weight || was.Addr != is.Addr {
			endpoints++
		}
		slots += max(from.slots[a]-part.slots[a], part.slots[a]-from.slots[a])
	}
	if limit := 2 * n; slots > limit || endpoints > limit && !inSlots {
		return fewAndMany, fmt.Errorf("%d endpoints and %d slots changed, more than %d: %d endpoints with weight, then %d", endpoints, slots, limit, before, after)
	}
	if to.pool.Total() > 0 && part.pool.Total() == 0 {
		return fewAndMany, errors.New("no endpoint has weight")
	}
	return fewAndMany, nil
}

// A part of a pool with source hash would have another table, which sends clients elsewhere.
func TestPoolWithSourceHashIsNotDivided(t *testing.T) {
	f := &plan.Frontend{Balance: plan.SourceHash, Pool: plan.Pool{Verdict: plan.Forward}}
	for i := range 1000 {
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: 1})
	}
	half := &plan.Frontend{Balance: plan.SourceHash, Pool: plan.Pool{Verdict: plan.Forward, Endpoints: f.Pool.Endpoints[:500]}}
	for _, change := range [][2]*plan.Frontend{{nil, f}, {half, f}, {f, half}, {f, nil}} {
		if got := part(change[0], change[1], 0); got != change[1] {
			t.Errorf("%d endpoints are in a part", len(got.Pool.Endpoints))
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
		if bytes := allocatedBytes(func() { now = part(now, to, 200*element) }); bytes > 10_000 {
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
