package leastloaded

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// model is a second implementation of the rules, with averages by address in floating point, and no encoded state.
type model struct {
	s       settings
	average map[netip.AddrPort]float64
	stepped float64 // seconds
	counted float64
	unclear bool // a reading was at the edge of the tolerance: integers may have decided otherwise
}

// step takes a count, age seconds old, and returns the factor of each share.
func (m *model) step(now, age float64, eps []abi.Endpoint, open []int) []float64 {
	before := m.average
	m.average = map[netip.AddrPort]float64{} // only those of this request
	total, weight := 0.0, 0.0
	for i, e := range eps {
		if e.Capacity == 0 {
			continue
		}
		if m.average[e.Addr] = 1; before[e.Addr] > 0 {
			m.average[e.Addr] = before[e.Addr]
		}
		if open[i] >= 0 {
			total, weight = total+float64(open[i]), weight+float64(e.Capacity)
		}
	}
	due := m.stepped != 0 && now >= m.stepped+float64(m.s.IntervalSeconds) && now-age >= m.counted+1
	if age <= float64(m.s.MaxAgeSeconds) && m.stepped == 0 { // the first step is within an interval
		h := weights.Mix(weights.HashText("node-1") ^ weights.HashText("default/web") ^ 80)
		m.stepped, m.counted = now+1-float64(m.s.IntervalSeconds)+math.Floor(float64(h)/(1<<32)*float64(m.s.IntervalSeconds)), now-age
	}
	if age <= float64(m.s.MaxAgeSeconds) && due {
		m.stepped, m.counted = now, now-age
		for i, e := range eps {
			if e.Capacity == 0 || open[i] < 0 || before[e.Addr] == 0 {
				continue
			}
			reading := (float64(open[i]) + 1) / (total*float64(e.Capacity)/weight + 1)
			old := m.average[e.Addr]
			off := math.Abs(reading-old) * 100 / old
			m.unclear = m.unclear || math.Abs(off-float64(m.s.TolerancePercent)) < .5+off/50
			if off <= float64(m.s.TolerancePercent) {
				continue
			}
			next := old + (reading-old)*float64(m.s.SmoothingPercent)/100
			bound := 1 + float64(m.s.MaxChangePercent)/100
			next = min(max(next, old/bound), old*bound)
			m.average[e.Addr] = min(max(next, 100/float64(m.s.MaxPercent)), 100/float64(m.s.MinPercent))
		}
	}
	var out []float64
	for _, e := range eps {
		f := 0.0
		if e.Capacity > 0 {
			f = 1 / m.average[e.Addr]
		}
		out = append(out, f)
	}
	return out
}

// agrees reports whether shares are those of the previous plugin times the parts of each endpoint, to half a part and what the
// integers of averages lose, or as they were, if all have as many.
func agrees(eps []abi.Endpoint, factors []float64, resp *abi.Response) bool {
	good, kept := true, true
	for i, e := range eps {
		if e.Capacity == 0 {
			good = good && resp.Results[i].Value == e.Share
			continue
		}
		got := float64(resp.Results[i].Value) * 20 / float64(e.Share)
		good = good && math.Abs(got-max(1, 20*factors[i])) <= .51+.6*factors[i]
		kept = kept && got == 20
	}
	return good || kept && slices.Max(factors) < 1.1*slices.Min(slices.DeleteFunc(slices.Clone(factors), func(f float64) bool { return f == 0 }))
}

func TestDecisionsAgreeWithTheModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	steps := 0
	for round := range rounds {
		s := defaults()
		s.IntervalSeconds, s.SmoothingPercent, s.MaxChangePercent = 2+rnd.Int64N(20), 1+rnd.Int64N(50), 1+rnd.Int64N(100)
		s.TolerancePercent, s.MinPercent, s.MaxPercent, s.MaxAgeSeconds = rnd.Int64N(20), 10+rnd.Int64N(91), 110+rnd.Int64N(291), 1+rnd.Int64N(60)
		text := fmt.Sprintf(`{"interval":"%ds","smoothingPercent":%d,"maxChangePercent":%d,"tolerancePercent":%d,"minPercent":%d,"maxPercent":%d,`+
			`"maxAge":"%ds"}`, s.IntervalSeconds, s.SmoothingPercent, s.MaxChangePercent, s.TolerancePercent, s.MinPercent, s.MaxPercent,
			s.MaxAgeSeconds)
		a, m := newSession(t, text), &model{s: s}
		pool := sdktest.NewRequest("a", nil, ready(2+rnd.IntN(20))...).Endpoints
		for i := range pool {
			pool[i].Capacity = uint32(rnd.IntN(4)) * abi.One
		}
		pool[0].Capacity, pool[1].Capacity = abi.One, 2*abi.One
		for range 60 {
			eps := slices.Clone(pool[:2+rnd.IntN(len(pool)-1)])
			if rnd.IntN(3) > 0 {
				eps = pool
			}
			open := make([]int, len(eps))
			for i := range open {
				if open[i] = rnd.IntN(1 << rnd.IntN(16)); rnd.IntN(20) == 0 {
					open[i] = -1
				}
			}
			a.Now += 1000 * (1 + rnd.Int64N(2*s.IntervalSeconds))
			a.age, a.Endpoints = time.Duration(rnd.IntN(80_000))*time.Millisecond, eps
			if rnd.IntN(3) > 0 {
				a.age = time.Duration(rnd.IntN(900)) * time.Millisecond
			}
			stepped := m.stepped
			factors := m.step(float64(a.Now)/1000, a.age.Seconds(), eps, open)
			resp := a.decide(open...)
			if m.stepped != stepped {
				steps++
			}
			if m.unclear {
				break
			}
			if !agrees(eps, factors, resp) {
				t.Fatalf("round %d, %s: shares %v, factors %.2f", round, text, sdktest.Answers(resp), factors)
			}
		}
	}
	if steps < rounds*10 {
		t.Errorf("%d steps: the test does not test all", steps)
	}
}

func FuzzState(f *testing.F) {
	s := newSession(f, "", ready(20)...)
	s.decide(9, 0, 100, 3, 4, 5, 6, 7)
	f.Add(s.State, []byte{0, 16}, uint16(3), uint16(500), int64(1000))
	f.Add([]byte{2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, []byte{0xff, 0xff}, uint16(1), uint16(0), int64(-5000))
	f.Add(slices.Repeat([]byte{1}, 1023), slices.Repeat([]byte{1}, 32), uint16(20), uint16(7), int64(1<<40))
	f.Add(append(slices.Repeat([]byte{2}, 13), 0, 0, 0, 0, 0), []byte{1}, uint16(2), uint16(2), int64(0))
	f.Fuzz(func(t *testing.T, state, endpoint []byte, a, b uint16, later int64) {
		if len(state) > abi.MaxStateLen || len(endpoint) > abi.MaxEndpointState || later < -1<<40 || later > 1<<40 {
			return
		}
		s := newSession(t, "", ready(20)...)
		s.State, s.Now, s.Twice = state, s.Now+later, true
		s.EndpointStates = abi.EndpointStates{s.Endpoints[3].Addr: endpoint, s.Endpoints[5].Addr: endpoint}
		open := make([]int, 20)
		open[3], open[9] = int(a), int(b)
		first := s.decide(open...)
		for i, w := range sdktest.Answers(first) {
			if w == 0 {
				t.Fatalf("endpoint %d has no share", i)
			}
		}
		if first.RequeueAfter <= 0 || first.RequeueAfter > 10*time.Second {
			t.Fatalf("requeue after %v", first.RequeueAfter)
		}
	})
}
