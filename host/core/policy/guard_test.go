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

// reading counts outcomes, all of connections that the policy gives to an endpoint which would not get them without it, and ends
// the reading.
func (s *GuardState) reading(c GuardCounts, length time.Duration, now time.Time) (changed bool) {
	s.Count(GuardOutcomes{Answered: c.Connections - c.Failed, Refused: c.Failed, More: 1})
	return s.Add(length, now)
}

// guardModel is the dumb second implementation: it keeps all readings and looks at all of them each time, with one capital for
// each reading at which a bet can have begun.
type guardModel struct {
	guard    Guard
	phase    GuardPhase
	early    []modelReading
	before   []modelReading // under the policies that apply without the guarded one
	inForce  []modelReading
	baseline GuardCounts
}

type modelReading struct {
	outcomes []GuardOutcomes
	length   time.Duration
	at       time.Duration
}

func (m *guardModel) set(g Guard, sameRevision bool) {
	if g == m.guard && sameRevision {
		return
	}
	if again := m.guard == (Guard{}) || g != m.guard || m.phase != GuardInForce; again {
		m.phase, m.before = GuardBaseline, nil
	}
	m.guard, m.inForce, m.early = g, nil, nil
}

// known returns the outcomes of a reading that count in it: those of connections a second ago.
func (m *guardModel) known(list []GuardOutcomes, length, at time.Duration) (out modelReading) {
	out = modelReading{length: length, at: at}
	var early modelReading
	for _, o := range list {
		late := o
		late.Answered, late.Refused = 0, 0
		o.Unanswered = 0
		out.outcomes, early.outcomes = append(out.outcomes, late), append(early.outcomes, o)
	}
	early.at = at
	m.early = append(m.early, early)
	for len(m.early) > 0 && at-m.early[0].at >= time.Second {
		out.outcomes = append(out.outcomes, m.early[0].outcomes...)
		m.early = m.early[1:]
	}
	return out
}

func (r *modelReading) sums() (n, failed uint64, more, unseen float64) {
	for _, o := range r.outcomes {
		k := o.Refused + o.Unanswered
		n, failed = n+o.Answered+k, failed+k
		more += float64(k) * o.More
		unseen += float64(o.Answered+k) * o.Unseen
	}
	return n, failed, more, unseen
}

func (m *guardModel) add(list []GuardOutcomes, length, at time.Duration) {
	r := m.known(list, length, at)
	if length <= 0 {
		return
	}
	switch m.phase {
	case GuardBaseline:
		n, _, _, _ := r.sums()
		if len(m.before) == 0 && n == 0 {
			return
		}
		m.before = append(m.before, r)
		var sum GuardCounts
		length := time.Duration(0)
		for _, b := range m.before {
			n, failed, _, _ := b.sums()
			sum.add(GuardCounts{n, failed})
			length += b.length
		}
		if length >= m.guard.Window && sum.Connections >= minBaseline {
			m.phase, m.baseline, m.early = GuardInForce, sum, nil
		}
	case GuardInForce:
		m.inForce = append(m.inForce, r)
		if m.fails() {
			m.phase, m.early = GuardFallenBack, nil
		}
	}
}

// fails looks at the last readings that cover a window, and at all bets.
func (m *guardModel) fails() bool {
	most := float64(m.baseline.Failed) / float64(m.baseline.Connections) // that may have failed before
	for step := 0.1; step > 1e-9; step /= 10 {
		for most+step < 1 && tail(m.baseline.Connections, m.baseline.Failed, most+step) > 0.01 {
			most += step
		}
	}
	allowed := float64(m.guard.FailedPercent) / 100
	first := 0
	for first < len(m.inForce)-1 {
		if n, _, _, _ := m.inForce[first].sums(); n > 0 {
			break
		}
		first++
	}
	var n, failed uint64
	excess, length, bad := 0.0, time.Duration(0), 0
	for i := len(m.inForce) - 1; i >= first && (length < m.guard.Window || len(m.inForce)-i <= 6); i-- {
		c, k, more, unseen := m.inForce[i].sums()
		n, failed, excess, length = n+c, failed+k, excess+more-most*unseen, length+m.inForce[i].length
		if more-most*unseen > allowed*float64(c) {
			bad++
		}
	}
	if failed < 10 || excess <= allowed*float64(n) || bad < 6 {
		return false
	}
	for _, stake := range []float64{0.1, 0.3, 0.6, 0.9, 2, 5, 15, 50} {
		capital := 1.0
		for i := len(m.inForce) - 1; i >= 0; i-- { // a bet that began there
			staked, unseen := 0.0, 0.0
			for _, o := range m.inForce[i].outcomes {
				if k := o.Refused + o.Unanswered; 1+stake*o.Least > 0 {
					staked += float64(o.Answered + k)
					unseen += float64(o.Answered+k) * o.Unseen
					capital *= math.Pow(1+stake*o.More, float64(k))
				}
			}
			if staked > 0 {
				capital /= math.Pow(1+stake*(allowed+most*unseen/staked), staked)
			}
			if capital >= 8e8 {
				return true
			}
		}
	}
	return false
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

// TestGuardEqualsAListOfReadings compares the guard with the model in random histories: readings of different lengths, traffic
// that comes and goes, shares of failures from none to all, endpoints with other shares than without the policy, other revisions
// and guards.
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
		if s.reading(GuardCounts{1000, 0}, time.Minute, now); s.Phase != GuardBaseline || s.Baseline != (GuardCounts{}) {
			t.Fatalf("seed %d: it counts before the revision is known: %+v", seed, s)
		}
		s.Set(g, "1", now)
		m.set(g, false)
		share, rate := r.Float64()*0.1, r.IntN(200)
		shifts := []GuardOutcomes{{}, {More: 1, Unseen: 1}, {More: r.Float64(), Unseen: r.Float64()}, {More: r.Float64(), Least: -r.Float64()}}
		shift := shifts[r.IntN(len(shifts))]
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
			case 5:
				shift = shifts[r.IntN(len(shifts))]
			}
			length := time.Duration(r.IntN(4)) * 500 * time.Millisecond
			now = now.Add(length)
			var list []GuardOutcomes
			for e := range 1 + r.IntN(3) {
				o := shift
				if e == 1 && o.Least < 0 {
					o.More = o.Least
				}
				for range r.IntN(rate + 1) {
					switch failed := r.Float64() < share; {
					case !failed:
						o.Answered++
					case r.IntN(2) == 0:
						o.Refused++
					default:
						o.Unanswered++
					}
				}
				list = append(list, o)
				s.Count(o)
			}
			before := s.Phase
			changed := s.Add(length, now)
			m.add(list, length, now.Sub(time.Unix(0, 0)))
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

// TestGuardHasNoFalseAlarms: a policy does not fall back under which as many connections fail as before, or up to half of what
// the guard allows more, with 100,000 connections of each kind: whether it gives all of them to other endpoints, or one of two
// endpoints four times what the other gets.
func TestGuardHasNoFalseAlarms(t *testing.T) {
	connections := 100_000
	if testing.Short() {
		connections = 25_000
	}
	for _, before := range []float64{0, 0.001, 0.01, 0.1, 0.5, 1} {
		for _, perReading := range []int{1, 20, 200} {
			for _, all := range []bool{true, false} {
				r := rand.New(rand.NewPCG(uint64(1000*before), uint64(perReading)))
				s := inForce(t, r, before, perReading)
				share := min(1, before+0.01)
				for i := range connections / perReading {
					c := draw(r, perReading, share)
					one, other := GuardOutcomes{More: 1, Unseen: 1}, GuardOutcomes{}
					if !all {
						one, other = GuardOutcomes{More: 1 - 0.5/0.8, Least: -1, Unseen: 0.1}, GuardOutcomes{More: -1, Least: -1, Unseen: 0.1}
					}
					for j := range c.Connections {
						o := &one
						if !all && r.IntN(5) == 0 {
							o = &other
						}
						if j < c.Failed {
							o.Refused++
						} else {
							o.Answered++
						}
					}
					s.Count(one)
					s.Count(other)
					if s.Add(500*time.Millisecond, time.Unix(1000, 0)) {
						t.Errorf("%v failed before, %v now, %d in a reading, all moved %t: it falls back after %d readings: %s", before, share, perReading, all, i, s)
						break
					}
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
		if s.reading(draw(r, perReading, share), 500*time.Millisecond, time.Unix(1000, 0)) {
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

// TestConnectionsUntilGuardFallsBack is the table in the README: how many connections it takes with {failedPercent: 2}, ten in a
// reading, if the policy gives endpoints connections that they would not get without it, and none failed before.
func TestConnectionsUntilGuardFallsBack(t *testing.T) {
	for _, c := range []struct {
		percent    uint64
		all, moved uint64 // 0: never, since half of 3 % is less than is allowed
	}{{100, 70, 70}, {50, 70, 140}, {10, 270, 1080}, {5, 1370, 17_150}, {3, 10_680, 0}} {
		until := func(o GuardOutcomes) (n uint64) {
			s := &GuardState{}
			s.Set(Guard{2, 10 * time.Hour}, "1", time.Unix(1000, 0))
			s.reading(GuardCounts{10_000, 0}, time.Second, time.Unix(1000, 0))
			s.reading(GuardCounts{}, 10*time.Hour, time.Unix(1000, 0))
			failed := uint64(0)
			for {
				n += 10
				o.Refused = n*c.percent/100 - failed
				failed += o.Refused
				o.Answered = 10 - o.Refused
				s.Count(o)
				if s.Add(time.Second, time.Unix(1000, 0)) {
					return n
				}
				if n > 50_000 {
					return 0
				}
			}
		}
		all, moved := until(GuardOutcomes{More: 1, Unseen: 1}), until(GuardOutcomes{More: 0.5, Least: -1})
		t.Logf("%d %%: %d, %d", c.percent, all, moved)
		if all != c.all || moved != c.moved {
			t.Errorf("%d %%: %d connections, %d if half of them are moved, want %d, %d", c.percent, all, moved, c.all, c.moved)
		}
	}
}

// TestGuardsSurviveARestart: what has fallen back stays so, what is in force keeps its baseline, and a baseline that has not
// ended begins again.
func TestGuardsSurviveARestart(t *testing.T) {
	g, now := Guard{2, 30 * time.Second}, time.Unix(1000, 0)
	state := func(p GuardPhase) *GuardState {
		s := &GuardState{}
		s.Set(g, "1", now)
		if p > GuardBaseline {
			s.reading(GuardCounts{1000, 5}, time.Minute, now)
			if !s.Add(time.Minute, now) {
				t.Fatal("the baseline does not end")
			}
		}
		for i := 0; p == GuardFallenBack && !s.reading(GuardCounts{100, 90}, time.Second, now); i++ {
			if i > 10 {
				t.Fatal("it does not fall back")
			}
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
	compares := c.evaluator.Guards["in force"]
	for range 10 {
		compares.reading(GuardCounts{100, 50}, time.Second, now)
	}
	if compares.Phase != GuardFallenBack {
		t.Errorf("after a restart it does not compare: %+v", compares)
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
