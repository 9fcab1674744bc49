package plan_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

var allBalances = []plan.Balance{plan.Random, plan.RoundRobin, plan.SourceHash, plan.LeastConnections}

// someCaps are like those of the real backends, and at the edges.
var someCaps = []plan.Caps{
	{Name: "all", ZeroWeight: true, Outcomes: true, LongLived: true, Balances: allBalances},
	{Name: "slots", Ratios: true, MaxTotal: 1000, Outcomes: true, Balances: allBalances[:1]},
	{Name: "few", Ratios: true, MaxTotal: 16, ZeroWeight: true, CoarseAffinity: true, MaxName: 20, Balances: allBalances[1:2]},
	{Name: "hash", Ratios: true, MaxTotal: 1000, MaxHashTotal: 7, Balances: allBalances},
	{Name: "one", Ratios: true, MaxTotal: 1, Balances: allBalances},
	{Name: "cut", Ratios: true, MaxTotal: 5, MaxEndpoints: 3, Balances: allBalances},
}

func TestFitAndStripAreIdempotentAndKeepPlansValid(t *testing.T) {
	for seed := range uint64(200) {
		g := testgen.NewPlans(seed, testgen.PlanOptions{})
		p := g.Plan()
		for i, c := range someCaps {
			before := plan.Format(p)
			fitted := plan.Fit(p, c)
			if err := plan.Validate(fitted); err != nil {
				t.Fatalf("seed %d caps %s: %v", seed, c.Name, err)
			}
			if twice := plan.Fit(fitted, c); !fitted.Equal(twice) {
				t.Fatalf("seed %d caps %s: fitted again\n%s", seed, c.Name, plan.FormatDiff(fitted, twice))
			}
			other := someCaps[(i+1)%len(someCaps)]
			if direct, switched := plan.Fit(p, other), plan.Fit(fitted, other); !direct.Equal(switched) {
				t.Fatalf("seed %d: caps %s after %s:\n%s", seed, other.Name, c.Name, plan.FormatDiff(direct, switched))
			}
			once := plan.Normalize(p, c)
			if err := plan.Validate(once); err != nil {
				t.Fatalf("seed %d caps %s: %v", seed, c.Name, err)
			}
			for k, f := range once.Frontends {
				fit := plan.NewFitter(&c)
				if c.Strip(fit.Fit(f)) != f {
					t.Fatalf("seed %d caps %s: %s: what did not change is not shared", seed, c.Name, k)
				}
			}
			if plan.Format(p) != before {
				t.Fatalf("seed %d caps %s: the argument changed", seed, c.Name)
			}
			checkDegradations(t, seed, p, once, fitted.Degradations())
		}
	}
}

// TestStrippedInReusedMemory: what saves memory returns the same.
func TestStrippedInReusedMemory(t *testing.T) {
	var memory []plan.Endpoint
	for seed := range uint64(200) {
		for _, c := range someCaps {
			for k, f := range plan.Fit(testgen.NewPlans(seed, testgen.PlanOptions{}).Plan(), c).Frontends {
				if got, want := c.StripInto(&memory, f), c.Strip(f); !got.Equal(want) {
					t.Fatalf("seed %d caps %s: %s: in reused memory %v, want %v", seed, c.Name, k, got, want)
				}
			}
		}
	}
}

// TestPoolsThatDoNotFitStayShared: the frontends of a Service port share endpoints, also those that are rounded, but for another
// sum.
func TestPoolsThatDoNotFitStayShared(t *testing.T) {
	c := plan.Caps{Ratios: true, MaxTotal: 4, MaxHashTotal: 3, Balances: allBalances}
	pool := plan.Pool{Endpoints: []plan.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 65535}, {Addr: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 1}}}
	fit := plan.NewFitter(&c)
	f, g := fit.Fit(&plan.Frontend{Pool: pool}), fit.Fit(&plan.Frontend{Kind: plan.NodePort, Pool: pool})
	if &f.Pool.Endpoints[0] != &g.Pool.Endpoints[0] || f.Pool.Total() != 4 || len(g.Degradations()) != 1 || pool.Total() != 65536 {
		t.Errorf("%v, %v, %v", f.Pool, g.Pool, pool)
	}
	hashed := fit.Fit(&plan.Frontend{Balance: plan.SourceHash, Pool: pool})
	if lost := hashed.Degradations(); hashed.Pool.Total() != 3 || len(lost) != 1 || lost[0].Got != "weights rounded to a sum of 3" {
		t.Errorf("%v, %v", hashed.Pool, lost)
	}
}

// TestWhatIsLostIsPartOfTheFrontend: another weight that is rounded to the same one is a change, as another backend may represent
// it.
func TestWhatIsLostIsPartOfTheFrontend(t *testing.T) {
	c := plan.Caps{Ratios: true, MaxTotal: 4, Balances: allBalances}
	of := func(weight uint16) *plan.Frontend {
		fit := plan.NewFitter(&c)
		return fit.Fit(&plan.Frontend{Pool: plan.Pool{Endpoints: []plan.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: weight},
			{Addr: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 1}}}})
	}
	if a, b := of(65535), of(65534); a.Equal(b) || !a.Pool.Equal(&b.Pool) || !a.Equal(of(65535)) {
		t.Errorf("%v, %v", a, b)
	}
}

// checkDegradations: nothing that matters to packets is lost without a Degradation.
func checkDegradations(t *testing.T, seed uint64, p, q *plan.Plan, lost []plan.Degradation) {
	t.Helper()
	for k, f := range p.Frontends {
		g := q.Frontends[k]
		reported := slices.ContainsFunc(lost, func(d plan.Degradation) bool { return d.Frontend == k && d.Owner == f.Owner })
		same := g != nil && g.Balance == f.Balance && g.Affinity == f.Affinity && g.Outcomes == f.Outcomes && g.LongLived == f.LongLived && g.Owner == f.Owner && sameShares(&f.Pool, &g.Pool) &&
			(f.Outside == nil || sameShares(f.Outside, g.Outside))
		if same == reported {
			t.Fatalf("seed %d: %s: same behavior %v, degradation reported %v", seed, k, same, reported)
		}
	}
}

// sameShares reports whether each address has the same probability in two pools, by cross-multiplication.
func sameShares(p, q *plan.Pool) bool {
	of := func(p *plan.Pool) map[netip.AddrPort]uint64 {
		m := map[netip.AddrPort]uint64{}
		for _, x := range p.Endpoints {
			if x.Weight > 0 {
				m[x.Addr] = uint64(x.Weight)
			}
		}
		return m
	}
	a, b := of(p), of(q)
	if p.Verdict != q.Verdict || len(a) != len(b) {
		return false
	}
	for addr, w := range a {
		if w*uint64(q.Total()) != b[addr]*uint64(p.Total()) {
			return false
		}
	}
	return true
}

// TestRoundingMatchesReferenceImplementation compares with a second implementation. It assigns one slot to an endpoint whose
// share is less than one, removes it and starts again, and then assigns single slots to the endpoint with the largest deficit.
func TestRoundingMatchesReferenceImplementation(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 5000 {
		n := 1 + rng.IntN(20)
		limit := 1 + rng.IntN(40)
		if round%3 == 0 {
			limit = 1000
		}
		weights := make([]uint64, n)
		for i := range weights {
			switch rng.IntN(4) {
			case 0:
				weights[i] = uint64(rng.IntN(65536))
			case 1:
				weights[i] = 65535
			case 2:
				weights[i] = uint64(rng.IntN(4))
			default:
				weights[i] = uint64(1 + rng.IntN(100))
			}
		}
		got, rounded := normalizeWeights(weights, limit)
		want := referenceWeights(weights, limit)
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: %v in %d slots: got %v, want %v", round, weights, limit, got, want)
		}
		checkBounds(t, weights, got, limit, rounded)
	}
}

func TestRoundingMaximumWeightsDoesNotOverflow(t *testing.T) {
	weights := make([]uint64, 5000)
	for i := range weights {
		weights[i] = 65535 - uint64(i%2)
	}
	for _, limit := range []int{1, 1000, 5000, 5001, 65535, 1 << 20, 1 << 40} {
		got, rounded := normalizeWeights(weights, limit)
		checkBounds(t, weights, got, limit, rounded)
	}
}

func checkBounds(t *testing.T, weights, got []uint64, limit int, rounded bool) {
	t.Helper()
	var sum, gotSum uint64
	n := 0
	for i, w := range weights {
		sum, gotSum = sum+w, gotSum+got[i]
		if w > 0 {
			n++
		}
		if (w > 0) != (got[i] > 0) {
			t.Fatalf("%v in %d slots: %d became %d", weights, limit, w, got[i])
		}
	}
	if most := uint64(max(limit, n)); gotSum > most {
		t.Fatalf("%v in %d slots: %v sums to %d", weights, limit, got, gotSum)
	}
	if n == 0 || rounded {
		return
	}
	for i, w := range weights {
		if w*gotSum != got[i]*sum {
			t.Fatalf("%v in %d slots: %v is not the same ratio, and no rounding is reported", weights, limit, got)
		}
	}
}

func TestRoundingErrorIsBelowOneSlotWithoutMinimumWeights(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		weights := make([]uint64, 2+rng.IntN(10))
		var sum uint64
		for i := range weights {
			weights[i] = uint64(5000 + rng.IntN(60000)) // each is due well over one of 1000 slots
			sum += weights[i]
		}
		got, rounded := normalizeWeights(weights, 1000)
		if !rounded {
			continue
		}
		var gotSum uint64
		for _, w := range got {
			gotSum += w
		}
		for i, w := range weights {
			// In lowest terms, so compare shares: |got/gotSum - w/sum| < 1/gotSum when gotSum divides 1000.
			off := float64(got[i])/float64(gotSum) - float64(w)/float64(sum)
			if off > 1.0/1000 || off < -1.0/1000 {
				t.Fatalf("%v: %v: share %d is off by %f", weights, got, i, off)
			}
		}
	}
}

func normalizeWeights(weights []uint64, limit int) (out []uint64, rounded bool) {
	f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}}
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80)
	}
	for i, w := range weights {
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: at(i), Weight: uint16(w)})
	}
	if f.Pool.Total() == 0 {
		f.Pool.Verdict = plan.Drop
	}
	c := plan.Caps{Ratios: true, MaxTotal: limit, Balances: allBalances}
	fit := plan.NewFitter(&c)
	fitted := fit.Fit(f)
	g, lost := c.Strip(fitted), fitted.Degradations()
	out = make([]uint64, len(weights))
	j := 0
	for i := range weights { // Caps without Idle leave those of weight 0 out
		if j < len(g.Pool.Endpoints) && g.Pool.Endpoints[j].Addr == at(i) {
			out[i] = uint64(g.Pool.Endpoints[j].Weight)
			j++
		}
	}
	return out, len(lost) > 0
}

func referenceWeights(weights []uint64, limit int) []uint64 {
	out := slices.Clone(weights)
	var sum uint64
	n := 0
	for _, w := range weights {
		sum += w
		if w > 0 {
			n++
		}
	}
	limit = max(limit, n)
	if n > 0 && sum/referenceGCD(weights) > uint64(limit) {
		floor := make([]bool, len(weights))
		left := uint64(limit)
		for {
			var rest uint64
			for i, w := range weights {
				if !floor[i] {
					rest += w
				}
			}
			found := []int{}
			for i, w := range weights {
				if w > 0 && !floor[i] && float64(w)*float64(left) < float64(rest) {
					found = append(found, i)
				}
			}
			if len(found) == 0 {
				given := uint64(0)
				due := make([]float64, len(weights))
				for i, w := range weights {
					if w == 0 || floor[i] {
						due[i] = -1
						continue
					}
					out[i] = w * left / rest
					given += out[i]
					due[i] = float64(w*left%rest) / float64(rest)
				}
				for ; given < left; given++ {
					best := 0
					for i := range due {
						if due[i] > due[best] {
							best = i
						}
					}
					out[best]++
					due[best] = -1
				}
				break
			}
			for _, i := range found {
				floor[i], out[i] = true, 1
				left--
			}
		}
	}
	if n > 0 {
		g := referenceGCD(out)
		for i := range out {
			out[i] /= g
		}
	}
	return out
}

// referenceGCD is the largest number that divides all of them, by trying.
func referenceGCD(list []uint64) uint64 {
	for g := slices.Max(list); g > 1; g-- {
		if !slices.ContainsFunc(list, func(w uint64) bool { return w%g != 0 }) {
			return g
		}
	}
	return 1
}

func TestFitReportsDegradations(t *testing.T) {
	few := someCaps[2]
	p := shopPlan(t)
	f := *p.Frontends[key(t, "10.96.0.10:80/TCP")]
	f.Pool.Endpoints = slices.Clone(f.Pool.Endpoints)
	f.Pool.Endpoints[0].Weight, f.Outcomes, f.Affinity = 60000, true, 3*time.Hour+time.Second
	p.Frontends[f.Key] = &f
	var text strings.Builder
	for _, d := range plan.Fit(p, few).Degradations() {
		text.WriteString(d.String() + "\n")
	}
	for _, want := range []string{
		"shop/web:http 10.96.0.10:80/TCP: wanted balance random, got balance round-robin: few: the data plane does not support it\n",
		"shop/web:http 10.96.0.10:80/TCP: wanted affinity 3h0m1s, got affinity 3h5m0s: few: the timeout is rounded up, to bound the number of different ones\n",
		"shop/web:http 10.96.0.10:80/TCP: wanted outcomes counted, got outcomes not counted: few: the data plane does not count them\n",
		"shop/web:http 10.96.0.10:80/TCP: wanted exact weights, got weights rounded to a sum of 16: few: the weights of a pool have at most that sum\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("missing: %sin:\n%s", want, text.String())
		}
	}
}

// TestNumberOfAffinityTimeoutsIsBounded: every whole second up to Kubernetes' maximum of a day. Up to 5 minutes all are exact: a
// client with a timeout of 125 s that asks every 130 s may have another endpoint each time.
func TestNumberOfAffinityTimeoutsIsBounded(t *testing.T) {
	c := plan.Caps{CoarseAffinity: true, Balances: []plan.Balance{plan.Random}}
	fit := plan.NewFitter(&c)
	different := map[time.Duration]bool{}
	for s := range 86_400 {
		f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}, Affinity: time.Duration(1+s) * time.Second,
			Pool: plan.Pool{Verdict: plan.Reject}}
		got := fit.Fit(f)
		if got.Affinity < f.Affinity || got.Affinity > 86_400*time.Second || got.Affinity-f.Affinity > f.Affinity/20 || s < 300 && got != f {
			t.Fatalf("%s becomes %s", f.Affinity, got.Affinity)
		}
		stripped := c.Strip(got)
		if again := fit.Fit(stripped); again != stripped || (got.Degraded != nil) != (got.Affinity != f.Affinity) {
			t.Fatalf("%s becomes %s, then %s, reported: %v", f.Affinity, got.Affinity, again.Affinity, got.Degradations())
		}
		different[got.Affinity] = true
	}
	if len(different) != 754 {
		t.Errorf("%d timeouts", len(different))
	}
}
