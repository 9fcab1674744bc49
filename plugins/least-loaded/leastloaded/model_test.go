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

// step takes a count, age seconds old, and returns the weight of each endpoint relative to its own.
func (m *model) step(now, age float64, eps []abi.Endpoint, open []int) []float64 {
	before := m.average
	m.average = map[netip.AddrPort]float64{} // only those of this request
	total, weight := 0.0, 0.0
	for i, e := range eps {
		if e.Weight == 0 {
			continue
		}
		if m.average[e.Addr] = 1; before[e.Addr] > 0 {
			m.average[e.Addr] = before[e.Addr]
		}
		if open[i] >= 0 {
			total, weight = total+float64(open[i]), weight+float64(e.Weight)
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
			if e.Weight == 0 || open[i] < 0 || before[e.Addr] == 0 {
				continue
			}
			reading := (float64(open[i]) + 1) / (total*float64(e.Weight)/weight + 1)
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
		if e.Weight > 0 {
			f = 1 / m.average[e.Addr]
		}
		out = append(out, f)
	}
	return out
}

// parts returns the parts of a fair share that weights of these factors can have, 0 if none.
func (m *model) parts(eps []abi.Endpoint, factors []float64) float64 {
	unit, total := 0, 0
	for _, e := range eps {
		for a := int(e.Weight); a != 0; {
			unit, a = a, unit%a
		}
		total += int(e.Weight)
	}
	for scale := min(20, max(1, int(m.s.MaxTotal)*unit/total)); scale > 0; scale-- {
		sum := 0.0
		for i, e := range eps {
			if e.Weight > 0 {
				sum += float64(int(e.Weight)/unit) * max(1, math.Round(float64(scale)*factors[i]))
			}
		}
		if sum <= float64(m.s.MaxTotal) {
			return float64(scale)
		}
	}
	return 0
}

// agrees reports whether weights are those of the previous plugin times the parts of each endpoint, to half a part and what the integers of averages lose, divided by some
// number.
func (m *model) agrees(eps []abi.Endpoint, factors []float64, scale float64, resp *abi.Response) bool {
	unit := 0
	for _, e := range eps {
		for a := int(e.Weight); a != 0; {
			unit, a = a, unit%a
		}
	}
	for divisor := 1; divisor <= 300; divisor++ {
		good := true
		for i, e := range eps {
			got := float64(int(resp.Results[i].Weight)*divisor*unit) / max(1, float64(e.Weight))
			good = good && (e.Weight > 0 || got == 0) && (e.Weight == 0 || math.Abs(got-max(1, scale*factors[i])) <= .51+.03*scale*factors[i])
		}
		if good {
			return true
		}
	}
	return false
}

func keeps(eps []abi.Endpoint, resp *abi.Response) bool {
	for i, e := range eps {
		if uint32(resp.Results[i].Weight) != e.Weight {
			return false
		}
	}
	return true
}

func TestDecisionsAgreeWithTheModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	kept, steps := 0, 0
	for round := range rounds {
		s := defaults()
		s.IntervalSeconds, s.SmoothingPercent, s.MaxChangePercent = 2+rnd.Int64N(20), 1+rnd.Int64N(50), 1+rnd.Int64N(100)
		s.TolerancePercent, s.MinPercent, s.MaxPercent, s.MaxAgeSeconds = rnd.Int64N(20), 10+rnd.Int64N(91), 110+rnd.Int64N(291), 1+rnd.Int64N(60)
		s.MaxTotal = 5 + rnd.Int64N(1<<(3+rnd.IntN(9)))
		text := fmt.Sprintf(`{"intervalSeconds":%d,"smoothingPercent":%d,"maxChangePercent":%d,"tolerancePercent":%d,"minPercent":%d,"maxPercent":%d,`+
			`"maxAgeSeconds":%d,"maxTotal":%d}`, s.IntervalSeconds, s.SmoothingPercent, s.MaxChangePercent, s.TolerancePercent, s.MinPercent, s.MaxPercent,
			s.MaxAgeSeconds, s.MaxTotal)
		a, m := newSession(t, text), &model{s: s}
		pool := sdktest.NewRequest("a", nil, ready(2+rnd.IntN(20))...).Endpoints
		for i := range pool {
			pool[i].Weight = uint32(rnd.IntN(4))
		}
		pool[0].Weight, pool[1].Weight = 1, 2
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
			scale := m.parts(eps, factors)
			if scale == 0 {
				kept++
			}
			// What integers lose may make the sum of weights just larger or smaller than maxTotal.
			near := m.agrees(eps, factors, scale-1, resp) || m.agrees(eps, factors, scale+1, resp)
			if scale > 0 && !m.agrees(eps, factors, scale, resp) && !near || scale == 0 && !keeps(eps, resp) {
				t.Fatalf("round %d, %s: weights %v, factors %.2f, %v parts", round, text, sdktest.Weights(resp), factors, scale)
			}
		}
	}
	if kept == 0 || steps < rounds*10 {
		t.Errorf("%d times kept, %d steps: the test does not test all", kept, steps)
	}
}

func FuzzState(f *testing.F) {
	s := newSession(f, "", ready(20)...)
	s.decide(9, 0, 100, 3, 4, 5, 6, 7)
	f.Add(s.State, uint16(3), uint16(500), int64(1000))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, uint16(1), uint16(0), int64(-5000))
	f.Add(slices.Repeat([]byte{1}, 1023), uint16(20), uint16(7), int64(1<<40))
	f.Add(append(slices.Repeat([]byte{1}, 13), 0, 0, 0, 0, 0), uint16(2), uint16(2), int64(0))
	f.Fuzz(func(t *testing.T, state []byte, a, b uint16, later int64) {
		if len(state) > abi.MaxStateLen || later < -1<<40 || later > 1<<40 {
			return
		}
		s := newSession(t, "", ready(20)...)
		s.State, s.Now, s.Twice = state, s.Now+later, true
		open := make([]int, 20)
		open[3], open[9] = int(a), int(b)
		first := s.decide(open...)
		sum := 0
		for i, w := range sdktest.Weights(first) {
			if sum += w; w == 0 {
				t.Fatalf("endpoint %d has no weight", i)
			}
		}
		if sum > 1000 || first.RequeueAfter <= 0 || first.RequeueAfter > 10*time.Second {
			t.Fatalf("sum %d, requeue after %v", sum, first.RequeueAfter)
		}
	})
}
