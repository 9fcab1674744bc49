package leastloaded

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// loop is a closed loop: connections arrive and end, they are counted, and the plugin sets the weights by which they are
// distributed.
type loop struct {
	s       *session
	arrive  float64                          // connections a second
	last    []float64                        // seconds that a connection lasts, by endpoint: a small or busy one takes longer
	open    []float64                        // connections, by endpoint
	weights []float64                        // in force
	next    func(rate float64) float64       // connections that arrive or end in a second, at a rate
	counted []int                            // at the last count
	age     time.Duration                    // of the count when the plugin is called
	each    func(second int, open []float64) // after each second
}

func newLoop(t *testing.T, settings string, arrive float64, last ...float64) *loop {
	l := &loop{s: newSession(t, settings, ready(len(last))...), arrive: arrive, last: last, open: make([]float64, len(last)), weights: make([]float64, len(last))}
	for i := range l.weights {
		l.weights[i] = 1
	}
	l.next = func(rate float64) float64 { return rate } // a fluid
	l.each = func(int, []float64) {}
	return l
}

// run runs the loop. Without a session, the weights stay as they are.
func (l *loop) run(seconds int) {
	call := 0
	for second := range seconds {
		total := 0.0
		for _, w := range l.weights {
			total += w
		}
		for i := range l.open {
			l.open[i] = max(0, l.open[i]+l.next(l.arrive*l.weights[i]/total)-l.next(l.open[i]/l.last[i]))
		}
		l.each(second, l.open)
		if l.s == nil {
			continue
		}
		if l.s.Now += 1000; second%max(1, int(l.age.Seconds())) == 0 || l.counted == nil {
			l.counted = l.counted[:0]
			for _, n := range l.open {
				l.counted = append(l.counted, int(math.Round(n)))
			}
			l.s.age = 0
		} else {
			l.s.age += time.Second
		}
		if second < call {
			continue
		}
		resp := l.s.decide(l.counted...)
		call = second + int(resp.RequeueAfter.Seconds())
		for i, r := range resp.Results {
			l.weights[i] = float64(r.Value)
		}
	}
}

// spread returns the largest number of open connections relative to the mean.
func spread(open []float64) float64 {
	most, total := 0.0, 0.0
	for _, n := range open {
		most, total = max(most, n), total+n
	}
	return most * float64(len(open)) / total
}

// mean returns the mean spread of the last seconds.
func (l *loop) mean(seconds, of int) float64 {
	sum := 0.0
	l.each = func(second int, open []float64) {
		if second >= seconds-of {
			sum += spread(open)
		}
	}
	l.run(seconds)
	return sum / float64(of)
}

// poisson returns a random number with a mean.
func poisson(rnd *rand.Rand) func(float64) float64 {
	return func(mean float64) float64 {
		if mean > 50 {
			return max(0, math.Round(mean+rnd.NormFloat64()*math.Sqrt(mean)))
		}
		n, p := 0.0, rnd.Float64()
		for q := math.Exp(-mean); p > q && n < 200; n++ {
			p -= q
			q *= mean / (n + 1)
		}
		return n
	}
}

// random returns settings, seconds that connections last by endpoint, and how often they are counted.
func random(rnd *rand.Rand) (settings string, last []float64, age time.Duration) {
	settings = fmt.Sprintf(`{"interval":"%ds","smoothingPercent":%d,"maxChangePercent":%d,"tolerancePercent":%d}`,
		2+rnd.IntN(20), 10+rnd.IntN(41), 10+rnd.IntN(91), rnd.IntN(8))
	base := math.Exp(rnd.Float64() * 7) // 1 s to 18 minutes
	for range 2 + rnd.IntN(12) {
		last = append(last, base*math.Exp(rnd.Float64()*1.5)) // up to 4.5 times as long
	}
	return settings, last, time.Duration(1+rnd.IntN(20)) * time.Second
}

// pair returns two loops for random settings, with the plugin and without, in which each endpoint has about so many connections,
// and for how many seconds they run.
func pair(t *testing.T, rnd *rand.Rand, connections float64) (with, without *loop, seconds int, name string) {
	settings, last, age := random(rnd)
	arrive := connections * float64(len(last)) / last[0]
	with, without = newLoop(t, settings, arrive, last...), newLoop(t, "", arrive, last...)
	with.age, without.s = age, nil
	return with, without, 3000 + 12*int(last[0]), fmt.Sprintf("%s, lasting %.0f", settings, last)
}

// Connections that last differently spread less than with equal weights, for any settings, and the loop comes to rest.
func TestLoadsConverge(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	for round := range rounds {
		with, without, seconds, name := pair(t, rnd, 100)
		equal := without.mean(seconds, 500)
		least, most := make([]float64, len(with.open)), make([]float64, len(with.open))
		sum := 0.0
		with.each = func(second int, open []float64) {
			for i, n := range open {
				if second == seconds-500 {
					least[i], most[i] = n, n
				} else if second > seconds-500 {
					least[i], most[i] = min(least[i], n), max(most[i], n)
				}
			}
			if second >= seconds-500 {
				sum += spread(open) / 500
			}
		}
		with.run(seconds)
		if sum > 1+(equal-1)*.75+.02 {
			t.Errorf("round %d: %s: spread %.3f, with equal weights %.3f", round, name, sum, equal)
		}
		for i := range least {
			if most[i]-least[i] > .08*most[i]+3 {
				t.Errorf("round %d: %s: endpoint %d has %.1f to %.1f connections in the end", round, name, i, least[i], most[i])
			}
		}
	}
}

// With random arrivals and ends too.
func TestLoadsConvergeInSpiteOfNoise(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		with, without, seconds, name := pair(t, rnd, 200)
		with.next, without.next = poisson(rnd), poisson(rnd)
		equal := without.mean(seconds, 1000)
		if got := with.mean(seconds, 1000); got > 1+(equal-1)*.85+.03 {
			t.Errorf("round %d: %s: spread %.3f, with equal weights %.3f", round, name, got, equal)
		}
	}
}

// A newcomer fills up without getting more than the others at any time, but for a bounded overshoot.
func TestNewcomerDoesNotOvershoot(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	rounds := 100
	if testing.Short() {
		rounds = 30
	}
	worst := 0.0
	for round := range rounds {
		settings, last, age := random(rnd)
		for i := range last {
			last[i] = last[0]
		}
		n := len(last)
		l := newLoop(t, settings, 100*float64(n)/last[0], last...)
		l.age = age
		for i := range n - 1 {
			l.open[i] = 100 * float64(n) / float64(n-1)
		}
		l.each = func(second int, open []float64) {
			if over := open[n-1] - 100; over > 2 {
				worst = max(worst, over/100)
				if over > 15 {
					t.Fatalf("round %d: %s, lasting %.0f s: the newcomer has %.1f connections of 100 after %d s", round, settings, last[0], open[n-1], second)
				}
			}
		}
		l.run(1000 + 10*int(last[0]))
		if got := l.open[n-1]; math.Abs(got-100) > 12 {
			t.Errorf("round %d: %s, lasting %.0f s: in the end the newcomer has %.1f connections of 100", round, settings, last[0], got)
		}
	}
	t.Logf("largest overshoot %.1f %%", 100*worst)
}

// The plugin is called as often as a host likes: only counts and time matter.
func TestDecisionDoesNotDependOnHowOftenItIsMade(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	for round := range 60 {
		often, seldom := newSession(t, "", ready(5)...), newSession(t, "", ready(5)...)
		wake := int64(0)
		var last *abi.Response
		for second := range 300 {
			open := make([]int, 5)
			for i := range open {
				open[i] = 50 + i*20 + rnd.IntN(10)
			}
			often.Now += 1000
			seldom.Now = often.Now
			want := often.decide(open...)
			if second == 0 || wake <= seldom.Now {
				last = seldom.decide(open...)
				wake = seldom.Now + last.RequeueAfter.Milliseconds()
			}
			if got, want := fmt.Sprint(sdktest.Answers(last)), fmt.Sprint(sdktest.Answers(want)); got != want {
				t.Fatalf("round %d, second %d: called every second %s, called when needed %s", round, second, want, got)
			}
		}
	}
}
