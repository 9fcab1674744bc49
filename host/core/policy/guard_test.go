package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// guardModel is the dumb second implementation: it keeps all readings and looks at all of them each time.
type guardModel struct {
	guard    Guard
	phase    GuardPhase
	before   []guardReading // under the policies that apply without the guarded one
	inForce  []guardReading
	baseline GuardCounts
}

func (m *guardModel) set(g Guard, sameRevision bool) {
	if g == m.guard && sameRevision {
		return
	}
	if again := m.guard == (Guard{}) || g != m.guard || m.phase != GuardInForce; again {
		m.phase, m.before = GuardBaseline, nil
	}
	m.guard, m.inForce = g, nil
}

func (m *guardModel) add(r guardReading) {
	if r.length <= 0 {
		return
	}
	switch m.phase {
	case GuardBaseline:
		m.before = append(m.before, r)
		var sum GuardCounts
		length := time.Duration(0)
		for _, b := range m.before {
			sum.add(b.counts)
			length += b.length
		}
		if length >= m.guard.Window && sum.Connections >= minBaseline {
			m.phase, m.baseline = GuardInForce, sum
		}
	case GuardInForce:
		m.inForce = append(m.inForce, r)
		if m.fails() {
			m.phase = GuardFallenBack
		}
	}
}

// fails looks at the last readings that cover a window.
func (m *guardModel) fails() bool {
	var sum GuardCounts
	length := time.Duration(0)
	for i := len(m.inForce) - 1; i >= 0 && length < m.guard.Window; i-- {
		sum.add(m.inForce[i].counts)
		length += m.inForce[i].length
	}
	before := m.baseline.Failed
	most := float64(before) / float64(m.baseline.Connections) // that may have failed before
	for step := 0.1; step > 1e-9; step /= 10 {
		for most+step < 1 && tail(m.baseline.Connections, before, most+step) > 0.01 {
			most += step
		}
	}
	allowed := most + float64(m.guard.FailedPercent)/100
	return sum.Failed >= 10 && float64(sum.Failed) > allowed*float64(sum.Connections) && tail(sum.Connections, sum.Failed, allowed) < 1e-6
}

// tail is the bound of the probability that at least k of n connections fail, each with the probability p, as a product.
func tail(n, k uint64, p float64) float64 {
	a := float64(k) / float64(n)
	bound := 1.0
	if k > 0 {
		bound = math.Pow(p/a, float64(k))
	}
	if k < n {
		bound *= math.Pow((1-p)/(1-a), float64(n-k))
	}
	return bound
}

// TestGuardEqualsAListOfReadings compares the guard with the model in random histories: readings of different lengths, traffic that
// comes and goes, shares of failures from none to all, other revisions and guards, restarts.
func TestGuardEqualsAListOfReadings(t *testing.T) {
	rounds := 600
	if testing.Short() {
		rounds = 100
	}
	phases := map[GuardPhase]int{}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 13))
		guards := []Guard{{1 + r.IntN(10), 5 * time.Second}, {2, 30 * time.Second}}
		var s GuardState
		var m guardModel
		now, revision, g := time.Unix(1000, 0), 1, guards[0]
		s.Set(g, "", now)
		if s.Add(GuardCounts{1000, 0}, time.Minute, now); s.Phase != GuardBaseline || s.Baseline != (GuardCounts{}) {
			t.Fatalf("seed %d: it counts before the revision is known: %+v", seed, s)
		}
		s.Set(g, "1", now)
		m.set(g, false)
		share, rate := r.Float64()*0.1, r.IntN(200)
		for step := range 300 {
			switch r.IntN(60) {
			case 0:
				share = math.Pow(r.Float64(), 4)
			case 1:
				rate = r.IntN(300)
			case 2:
				if r.IntN(3) == 0 {
					revision++
					s.Set(g, fmt.Sprint(revision), now)
					m.set(g, false)
				}
			case 3:
				if r.IntN(3) == 0 {
					g = guards[r.IntN(2)]
					s.Set(g, fmt.Sprint(revision), now)
					m.set(g, true)
				}
			case 4:
				s.Set(g, "", now) // a plugin is not loaded for a moment
			}
			length := time.Duration(r.IntN(4)) * 500 * time.Millisecond
			now = now.Add(length)
			c := GuardCounts{Connections: uint64(r.IntN(rate + 1))}
			for range c.Connections {
				if r.Float64() < share {
					c.Failed++
				}
			}
			before := s.Phase
			changed := s.Add(c, length, now)
			m.add(guardReading{c, length})
			if s.Phase != m.phase || changed != (before != s.Phase) || s.InForce() != (m.phase == GuardInForce) {
				t.Fatalf("seed %d, step %d: %s (changed %t), want %s\n%+v\n%+v", seed, step, s.Phase, changed, m.phase, s, m)
			}
			phases[s.Phase]++
		}
	}
	for _, p := range []GuardPhase{GuardBaseline, GuardInForce, GuardFallenBack} {
		if phases[p] < rounds {
			t.Errorf("%s: only %d steps", p, phases[p])
		}
	}
}

// TestChanceIsABound compares the bound with the exact probability of the binomial distribution.
func TestChanceIsABound(t *testing.T) {
	for _, n := range []uint64{1, 4, 10, 50, 300, 1000} {
		for _, p := range []float64{0.01, 0.02, 0.1, 0.35, 0.9} {
			for k := uint64(math.Ceil(float64(n)*p)) + 1; k <= n; k += 1 + n/20 {
				exact := 0.0
				for i := k; i <= n; i++ {
					exact += math.Exp(logChoose(n, i) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
				}
				bound := chance(n, float64(k)/float64(n), p)
				if exact > bound*(1+1e-9) {
					t.Errorf("%d of %d with %v: %g, more than %g", k, n, p, exact, bound)
				}
				if bound > 4*math.Sqrt(float64(n))*exact+1e-300 {
					t.Errorf("%d of %d with %v: %g is no useful bound of %g", k, n, p, bound, exact)
				}
			}
		}
	}
}

func logChoose(n, k uint64) float64 {
	lg := func(x uint64) float64 { v, _ := math.Lgamma(float64(x + 1)); return v }
	return lg(n) - lg(k) - lg(n-k)
}

// TestGuardHasNoFalseAlarms: a policy under which as many connections fail as before, or up to half of what the guard allows more, does
// not fall back, with 400,000 connections of each kind.
func TestGuardHasNoFalseAlarms(t *testing.T) {
	connections := 400_000
	if testing.Short() {
		connections = 100_000
	}
	for _, before := range []float64{0, 0.001, 0.01, 0.1, 0.5, 1} {
		for _, perReading := range []int{1, 20, 200} {
			r := rand.New(rand.NewPCG(uint64(1000*before), uint64(perReading)))
			s := inForce(t, r, before, perReading)
			share := min(1, before+0.01)
			for i := range connections / perReading {
				if s.Add(draw(r, perReading, share), 500*time.Millisecond, time.Unix(1000, 0)) {
					t.Errorf("%v failed before, %v now, %d in a reading: it falls back after %d readings: %s", before, share, perReading, i, s)
					break
				}
			}
		}
	}
}

// inForce returns a guard after a baseline with a share of failures.
func inForce(t *testing.T, r *rand.Rand, share float64, perReading int) *GuardState {
	t.Helper()
	s := &GuardState{}
	s.Set(Guard{2, 30 * time.Second}, "1", time.Unix(1000, 0))
	for range 10_000 {
		if s.Add(draw(r, perReading, share), 500*time.Millisecond, time.Unix(1000, 0)) {
			return s
		}
	}
	t.Fatal("the baseline does not end")
	return nil
}

func draw(r *rand.Rand, n int, share float64) (c GuardCounts) {
	c.Connections = uint64(n)
	for range n {
		if r.Float64() < share {
			c.Failed++
		}
	}
	return c
}

// TestConnectionsUntilGuardFallsBack is the table in the README: how many connections it takes with {failedPercent: 2} if none failed before.
func TestConnectionsUntilGuardFallsBack(t *testing.T) {
	g := Guard{2, 30 * time.Second}
	for percent, want := range map[uint64]uint64{100: 10, 50: 20, 10: 170, 5: 900, 3: 6970} {
		n := uint64(0)
		for !g.exceeds(GuardCounts{10_000, 0}, GuardCounts{n, n * percent / 100}) {
			n += 10
		}
		if n != want {
			t.Errorf("%d %%: %d connections, want %d", percent, n, want)
		}
	}
	for _, c := range []struct {
		what          string
		baseline, now GuardCounts
		want          bool
	}{
		{"few failures, all of them", GuardCounts{100, 0}, GuardCounts{9, 9}, false},
		{"ten failures, all of them", GuardCounts{100, 0}, GuardCounts{10, 10}, true},
		{"at the limit", GuardCounts{1000, 0}, GuardCounts{100_000, 2000}, false},
		{"at the limit, with a baseline", GuardCounts{1000, 100}, GuardCounts{100_000, 12_000}, false},
		{"above it", GuardCounts{1000, 100}, GuardCounts{100_000, 16_000}, true},
		{"above it, which a short baseline explains", GuardCounts{1000, 100}, GuardCounts{100_000, 14_000}, false},
		{"above it, which a long baseline does not", GuardCounts{100_000, 10_000}, GuardCounts{100_000, 14_000}, true},
		{"all failed before", GuardCounts{1000, 1000}, GuardCounts{100_000, 100_000}, false},
		{"nearly all failed before", GuardCounts{1000, 980}, GuardCounts{100_000, 100_000}, false},
		{"no connections", GuardCounts{1000, 0}, GuardCounts{}, false},
	} {
		if got := g.exceeds(c.baseline, c.now); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}

// TestGuardsSurviveARestart: what has fallen back stays so, what is in force keeps its baseline, and a baseline that has not ended begins
// again.
func TestGuardsSurviveARestart(t *testing.T) {
	g, now := Guard{2, 30 * time.Second}, time.Unix(1000, 0)
	state := func(p GuardPhase) *GuardState {
		s := &GuardState{}
		s.Set(g, "1", now)
		if p > GuardBaseline && !s.Add(GuardCounts{1000, 5}, time.Minute, now) {
			t.Fatal("the baseline does not end")
		}
		if p == GuardFallenBack && !s.Add(GuardCounts{100, 90}, time.Second, now) {
			t.Fatal("it does not fall back")
		}
		return s
	}
	b := newFixture()
	for _, p := range []GuardPhase{GuardBaseline, GuardInForce, GuardFallenBack} {
		b.evaluator.Guards[p.String()] = state(p)
	}
	text, err := b.evaluator.Save(Epoch{Boot: "b", At: 5000})
	if err != nil {
		t.Fatal(err)
	}
	c := newFixture()
	if _, _, err := c.evaluator.Restore(text, Epoch{Boot: "b", At: 7000}); err != nil {
		t.Fatal(err)
	}
	if n := len(c.evaluator.Guards); n != 2 {
		t.Errorf("%d guards are restored", n)
	}
	for _, p := range []GuardPhase{GuardInForce, GuardFallenBack} {
		was, is := state(p), c.evaluator.Guards[p.String()]
		later := now.Add(time.Hour)
		is.Set(g, "", later) // plugins are not loaded yet
		is.Set(g, "1", later)
		if is.Phase != p || is.Baseline != was.Baseline || is.Since != was.Since+2000 || p == GuardFallenBack && is.Recent != was.Recent {
			t.Errorf("%s: %+v, was %+v", p, is, was)
		}
		if !is.BlindAt().Equal(later.Add(30 * time.Second)) {
			t.Errorf("%s: blind at %s", p, is.BlindAt())
		}
	}
	if is := c.evaluator.Guards["in force"]; is.Add(GuardCounts{100, 50}, time.Second, now) != true || is.Phase != GuardFallenBack {
		t.Errorf("after a restart it does not compare: %+v", is)
	}
	is := c.evaluator.Guards["fallen back"]
	if is.Set(g, "2", now); is.Phase != GuardBaseline || is.Baseline != (GuardCounts{}) {
		t.Errorf("another revision: %+v", is)
	}
}

// TestImpossibleStatesOfGuardsAreNotRestored: a checkpoint that was changed begins a baseline again.
func TestImpossibleStatesOfGuardsAreNotRestored(t *testing.T) {
	good := savedGuard{Policy: "p", Revision: "1", FailedPercent: 2, Window: time.Minute, Baseline: GuardCounts{100, 100}}
	for i, change := range []func(*savedGuard){
		func(g *savedGuard) {}, func(g *savedGuard) { g.Revision = "" }, func(g *savedGuard) { g.Window = -1 },
		func(g *savedGuard) { g.Baseline.Failed = 101 }, func(g *savedGuard) { g.Baseline.Connections = 0 }, func(g *savedGuard) { g.Recent.Failed = 1 },
	} {
		g := good
		change(&g)
		text, err := json.Marshal(checkpoint{Version: checkpointVersion, Guards: []savedGuard{g, g}})
		if err != nil {
			t.Fatal(err)
		}
		b := newFixture()
		if _, _, err := b.evaluator.Restore(text, Epoch{}); err != nil || (len(b.evaluator.Guards) == 1) != (i == 0) {
			t.Errorf("%d: %v, %d guards", i, err, len(b.evaluator.Guards))
		}
	}
}

// TestApplicableListsWhatDecidesNowOrLater: several guarded policies, by annotation, binding and default.
func TestApplicableListsWhatDecidesNowOrLater(t *testing.T) {
	guard := Guard{2, time.Minute}
	set := &Set{
		Policies: map[string]*Policy{"a": {Name: "a", Guard: guard}, "b": {Name: "b", Guard: guard}, "c": {Name: "c"}, "d": {Name: "d", Guard: guard}},
		Bindings: []Binding{{Namespaces: []string{"shop"}, Policy: "b"}, {Namespaces: []string{"shop"}, Policy: "b"}, {Namespaces: []string{"shop"}, Policy: "c"}},
		Default:  "d",
		Allow:    []Allow{{Policies: []string{"a", "c"}}},
	}
	names := func(svc *model.Service, last string) (out string) {
		for _, p := range set.applicable(svc, last) {
			out += p.Name
		}
		return out
	}
	chosen, typo := &model.Service{Name: model.Name{Namespace: "shop"}, Policy: "a"}, &model.Service{Name: model.Name{Namespace: "lab"}, Policy: "x"}
	shop, lab := &model.Service{Name: model.Name{Namespace: "shop"}}, &model.Service{Name: model.Name{Namespace: "lab"}}
	for _, suspended := range []bool{true, false} {
		for _, name := range []string{"a", "b", "d"} {
			if !set.Suspend(name, suspended) || set.Suspend(name, suspended) {
				t.Errorf("%s: a change, and none", name)
			}
		}
		if got := names(shop, "") + " " + names(lab, "") + " " + names(chosen, "") + " " + names(typo, "") + " " + names(typo, "a"); got != "bc d abc d ad" {
			t.Errorf("suspended %t: %s", suspended, got)
		}
	}
	for _, c := range []struct{ suspended, shop, lab, chosen, typo string }{
		{"", "b", "d", "a", "a"}, {"b", "c", "d", "a", "a"}, {"d", "b", "", "a", "a"}, {"a", "b", "d", "b", "d"},
	} {
		set.Suspend(c.suspended, true)
		for svc, want := range map[*model.Service]string{shop: c.shop, lab: c.lab, chosen: c.chosen, typo: c.typo} {
			got := ""
			if p, _ := set.For(svc, "", "a"); p != nil {
				got = p.Name
			}
			if got != want {
				t.Errorf("%q suspended: %s has policy %q, want %q", c.suspended, svc.Name, got, want)
			}
		}
		set.Suspend(c.suspended, false)
	}
}
