package outlier

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// model is a second implementation of the rules: it keeps every reading of every endpoint, and no encoded state. It has no limit
// for the state, and no order among endpoints that fail equally often, so that the test gives each another number of failures.
type model struct {
	s   settings
	eps []*modelEndpoint
}

type modelEndpoint struct {
	node     string
	readings []modelReading // since the window began
	start    int64
	until    int64
	times    int64
	stage    int64 // of the trial
	relapsed bool  // at the end of a stage; its readings are those of that stage
	byNode   bool
	ejected  bool
}

type modelReading struct{ answered, failed int }

func (e *modelEndpoint) sum() (answered, failed int) {
	for _, r := range e.readings {
		answered, failed = answered+r.answered, failed+r.failed
	}
	return answered, failed
}

// step takes a reading and returns the endpoints that are out, and whether there is a panic.
func (m *model) step(now int64, readings []counts) (all []int, panics bool) {
	var bad []int
	for i, e := range m.eps {
		e.ejected = e.until > now
		if e.relapsed {
			e.readings, e.relapsed = nil, false
		}
		r := modelReading{readings[i].answered, readings[i].refused + readings[i].unanswered}
		returned := e.times > 0 && !e.ejected
		trial := returned && m.s.ReturnPercent<<e.stage < 100
		switch {
		case e.ejected:
			e.readings, e.start = nil, 0
			bad = append(bad, i)
			continue
		case returned && now-1 < e.until: // the reading of a half second began before
			if trial && e.start == 0 {
				e.start = now
			}
			continue
		case trial && e.start != 0 && now >= e.start+m.s.WindowSeconds:
			if m.endStage(e, r, now) {
				bad = append(bad, i)
			}
			continue
		case trial && e.start == 0 && r.failed == 0:
			e.start = now
			continue
		case trial && e.start != 0:
			if len(e.readings) == 0 {
				e.readings = []modelReading{{}} // the window has begun
			}
		}
		if len(e.readings) > 0 && now >= e.start+m.s.WindowSeconds {
			e.readings = nil
		}
		if len(e.readings) == 0 && r.failed == 0 {
			continue
		} else if len(e.readings) == 0 {
			e.start = now
		}
		e.readings = append(e.readings, r)
		streak := 0
		for _, r := range e.readings {
			if r.answered > 0 {
				streak = 0
			} else if r.failed > 0 {
				streak++
			}
		}
		answered, failed := e.sum()
		if n := int64(answered + failed); streak >= int(m.s.ConsecutiveReadings) || trial && streak > 0 ||
			n >= m.s.MinAttempts && int64(failed)*100 >= n*m.s.FailedPercent {
			bad = append(bad, i)
		}
	}
	nodes := m.failingNodes(bad)
	of := func(i int) bool { return slices.Contains(nodes, m.eps[i].node) }
	whole := slices.Clone(bad)
	for i := range m.eps {
		if of(i) && !slices.Contains(bad, i) {
			whole = append(whole, i)
		}
	}
	tooMany := func(n int) bool { return int64(len(m.eps)-n)*100 < m.s.PanicPercent*int64(len(m.eps)) }
	if tooMany(len(whole)) {
		nodes = nil
	}
	if tooMany(len(bad)) {
		return nil, true
	}
	limit := max(1, len(m.eps)*int(m.s.MaxEjectionPercent)/100)
	out := func(node string) (n int) {
		for _, e := range m.eps {
			if e.ejected && (node == "" || e.node == node) {
				n++
			}
		}
		return n
	}
	size := func(node string) (n int) {
		for _, e := range m.eps {
			if e.node == node {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(nodes, func(a, b string) int { return cmp.Compare(m.ownOf(b, bad), m.ownOf(a, bad)) })
	for _, node := range nodes {
		if more := size(node) - out(node); out("")+more <= limit || out("") == out(node) {
			for i, e := range m.eps {
				if e.node == node && !e.ejected {
					m.eject(e, now, !slices.Contains(bad, i))
				}
			}
		}
	}
	slices.SortStableFunc(bad, func(a, b int) int {
		_, x := m.eps[a].sum()
		_, y := m.eps[b].sum()
		return cmp.Compare(y, x)
	})
	for _, i := range bad {
		if e := m.eps[i]; !e.ejected && out("") < limit {
			m.eject(e, now, false)
		}
	}
	for i, e := range m.eps {
		if e.ejected {
			all = append(all, i)
		}
	}
	return all, false
}

// endStage ends a stage of a trial, and reports whether the endpoint is ejected again.
func (m *model) endStage(e *modelEndpoint, last modelReading, now int64) bool {
	answered, failed := e.sum()
	answered, failed = answered+last.answered, failed+last.failed
	if failed > 0 && int64(failed)*100 >= int64(answered+failed)*m.s.FailedPercent {
		e.readings, e.start, e.relapsed = append(e.readings, last), now, true
		return true
	}
	if answered > 0 {
		e.stage++
	}
	e.readings, e.start = nil, now
	if m.s.ReturnPercent<<e.stage >= 100 {
		e.until, e.start = now, 0
	}
	return false
}

func (m *model) ownOf(node string, bad []int) (n int) {
	for _, i := range bad {
		if e := m.eps[i]; e.node == node && !(e.ejected && e.byNode) {
			n++
		}
	}
	return n
}

func (m *model) failingNodes(bad []int) (nodes []string) {
	for _, i := range bad {
		node, all := m.eps[i].node, 0
		for _, e := range m.eps {
			if e.node == node {
				all++
			}
		}
		if n := m.ownOf(node, bad); !m.eps[i].ejected && n >= int(m.s.NodeEndpoints) && 2*n >= all && !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func (m *model) eject(e *modelEndpoint, now int64, byNode bool) {
	if e.times > 0 && m.s.ReturnPercent<<e.stage >= 100 {
		e.times -= max(0, now-e.until) / m.s.WindowSeconds
	}
	e.stage, e.start = 0, 0
	e.times = min(max(e.times, 0)+1, m.s.maxTimes())
	e.until = now + min(m.s.MaxEjectionSeconds, m.s.BaseEjectionSeconds*e.times)
	e.ejected, e.byNode, e.readings = true, byNode, nil
}

func TestDecisionsAgreeWithTheModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	ejections, byNode, panics := 0, 0, 0
	for round := range rounds {
		s := defaults()
		s.WindowSeconds, s.FailedPercent, s.MinAttempts, s.ConsecutiveReadings = 2+rnd.Int64N(10), 20+rnd.Int64N(80), 1+rnd.Int64N(40), 1+rnd.Int64N(3)
		s.NodeEndpoints, s.BaseEjectionSeconds, s.MaxEjectionPercent, s.PanicPercent = 2+rnd.Int64N(2), 3+rnd.Int64N(20), 1+rnd.Int64N(60), 30+rnd.Int64N(50)
		s.MaxEjectionSeconds, s.JitterPercent = s.BaseEjectionSeconds*3-1, 0
		text := fmt.Sprintf(`{"window":"%ds","failedPercent":%d,"minAttempts":%d,"consecutiveReadings":%d,"nodeEndpoints":%d,"baseEjectionTime":"%ds",`+
			`"maxEjectionTime":"%ds","jitterPercent":0,"maxEjectionPercent":%d,"panicPercent":%d}`, s.WindowSeconds, s.FailedPercent, s.MinAttempts,
			s.ConsecutiveReadings, s.NodeEndpoints, s.BaseEjectionSeconds, s.MaxEjectionSeconds, s.MaxEjectionPercent, s.PanicPercent)
		m := &model{s: s}
		var eps []abi.Endpoint
		nodes := 1 + rnd.IntN(8)
		for range 1 + rnd.IntN(16) {
			node := fmt.Sprintf("n%d", rnd.IntN(nodes))
			eps, m.eps = append(eps, on(node, sdktest.Ready("a"))), append(m.eps, &modelEndpoint{node: node})
		}
		often := newSession(t, text, eps...)
		mood := make([]int, len(eps)) // 0 answers, 1 fails at times, 2 fails
		for step := range 200 {
			often.Now += 1000
			readings := make([]counts, len(eps))
			for i := range eps {
				if rnd.IntN(25) == 0 {
					mood[i] = max(0, rnd.IntN(4)-1)
				}
				bad := 1<<i%997 + i // another number for each endpoint: few ties
				switch {
				case mood[i] == 2 || mood[i] == 1 && rnd.IntN(3) == 0:
					readings[i].refused = bad
					readings[i].unanswered = rnd.IntN(3) * 1009
					if rnd.IntN(4) == 0 {
						readings[i].answered = 1 + rnd.IntN(9)
					}
				case rnd.IntN(4) > 0:
					readings[i].answered = rnd.IntN(30)
				}
			}
			if ambiguous(m, often.Now/1000, readings) {
				continue
			}
			resp := often.read(readings...)
			want, panicked := m.step(often.Now/1000, readings)
			if got := out(resp); !slices.Equal(got, want) {
				t.Fatalf("round %d, step %d, %s: ejected %v, the model %v", round, step, text, got, want)
			}
			if len(out(resp)) == len(eps) {
				t.Fatal("no endpoint is left")
			}
			ejections += len(want)
			if panicked {
				panics++
			}
			for _, e := range m.eps {
				if e.ejected && e.byNode {
					byNode++
				}
			}
		}
	}
	if ejections == 0 || byNode == 0 || panics == 0 {
		t.Errorf("%d ejections, %d by node, %d panics: the test does not test all", ejections, byNode, panics)
	}
}

// ambiguous reports whether two endpoints or nodes may fail equally often, so that the hash decides. Such a step is left out.
func ambiguous(m *model, now int64, readings []counts) bool {
	seen := map[int]bool{}
	for i, e := range m.eps {
		if _, failed := e.sum(); e.until <= now {
			f := failed + readings[i].refused + readings[i].unanswered
			if f > 0 && seen[f] {
				return true
			}
			seen[f] = true
			if f2 := readings[i].refused + readings[i].unanswered; f2 != f && f2 > 0 && seen[f2] {
				return true
			} else {
				seen[f2] = true
			}
		}
	}
	return false
}

// A host calls when there are new failures and at the requested time; a call in between changes nothing.
func TestDecisionDoesNotDependOnHowOftenItIsMade(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 60 {
		text := `{"window":"4s","baseEjectionTime":"5s","maxEjectionPercent":40,"minAttempts":8}`
		often, seldom := newSession(t, text, spread(6)...), newSession(t, text, spread(6)...)
		var last []float64
		wake, mood := int64(0), make([]bool, 6)
		for step := range 120 {
			often.Now += 1000
			seldom.Now = often.Now
			readings, failures := make([]counts, 6), false
			for i := range readings {
				if rnd.IntN(12) == 0 {
					mood[i] = !mood[i]
				}
				if mood[i] && rnd.IntN(3) > 0 {
					readings[i].refused, failures = 1+rnd.IntN(4), true
				}
				if !mood[i] || rnd.IntN(5) == 0 {
					readings[i].answered = rnd.IntN(4)
				}
			}
			want := sdktest.Answers(often.read(readings...))
			old := seldom.EndpointStates
			resp := seldom.read(readings...)
			if failures || step == 0 || wake != 0 && wake <= seldom.Now {
				last, wake = sdktest.Answers(resp), 0
				if resp.RequeueAfter > 0 {
					wake = seldom.Now + resp.RequeueAfter.Milliseconds()
				}
			} else {
				seldom.EndpointStates = old // a host would not have called
			}
			if !slices.Equal(last, want) {
				t.Fatalf("round %d, step %d: called for each reading %v, called when needed %v", round, step, want, last)
			}
		}
	}
}

func FuzzState(f *testing.F) {
	s := newSession(f, ``, spread(20)...)
	s.read(counts{refused: 9}, counts{answered: 3, refused: 1}, counts{refused: 9})
	f.Add(s.EndpointStates[s.Endpoints[0].Addr], uint8(3), int64(1000))
	f.Add(append([]byte{1}, slices.Repeat([]byte{0xff}, stateSize-1)...), uint8(1), int64(-5000))
	f.Add(slices.Repeat([]byte{1}, stateSize), uint8(20), int64(1<<40))
	f.Add([]byte{2}, uint8(0), int64(0))
	f.Fuzz(func(t *testing.T, state []byte, failing uint8, later int64) {
		if len(state) > abi.MaxEndpointState || later < -1<<40 || later > 1<<40 {
			return
		}
		s := newSession(t, ``, spread(20)...)
		s.Now, s.Twice, s.EndpointStates = s.Now+later, true, abi.EndpointStates{}
		for i := range 20 {
			if i%3 == 0 {
				s.EndpointStates[s.Endpoints[i].Addr] = state
			}
		}
		readings := make([]counts, 20)
		for i := range int(failing) % 20 {
			readings[i].refused = 9
		}
		first := s.read(readings...)
		if n := len(out(first)); n > 10 || first.RequeueAfter.Seconds() > 360 {
			t.Fatalf("%d of 20 ejected, requeue after %v", n, first.RequeueAfter)
		}
	})
}
