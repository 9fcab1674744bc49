package utilization

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// loop is a closed loop: requests go to endpoints by their shares, which follow what the endpoints report of them.
type loop struct {
	*session
	requests float64   // a second, to all endpoints
	capacity []float64 // requests a second at full load
	base     []float64 // utilization without requests
	last     float64   // seconds that a connection lasts: requests follow shares this slowly
	rate     []float64 // requests a second, by endpoint
	counted  bool      // requests are reported
	every    int       // seconds between reports
	delay    int       // seconds until a report counts
	noise    func() float64
	each     func(second int, used []float64)
}

// random returns a loop with random endpoints, whose mean utilization is that of busy servers.
func random(t *testing.T, rnd *rand.Rand, counted bool) (*loop, string) {
	n := 2 + rnd.IntN(12)
	settings := fmt.Sprintf(`{"interval":"%ds","smoothingPercent":%d,"maxChangePercent":%d,"tolerancePercent":%d}`,
		2+rnd.IntN(20), 10+rnd.IntN(41), 10+rnd.IntN(91), rnd.IntN(8))
	l := &loop{session: newSession(t, settings, n), last: math.Exp(rnd.Float64() * 6), counted: counted, every: 5 + rnd.IntN(26), delay: rnd.IntN(20),
		noise: func() float64 { return 1 }, each: func(int, []float64) {}}
	total := 0.0
	for range n {
		l.capacity = append(l.capacity, 100*math.Exp(rnd.Float64()*1.2)) // up to 3.3 times as large
		l.base = append(l.base, rnd.Float64()*.1)
		total += l.capacity[len(l.capacity)-1]
	}
	l.requests = total * (.3 + .4*rnd.Float64())
	for range n {
		l.rate = append(l.rate, l.requests/float64(n))
	}
	return l, fmt.Sprintf("%s, capacities %.0f, connections of %.0f s, reports each %d s, %d s late", settings, l.capacity, l.last, l.every, l.delay)
}

func (l *loop) used() (used []float64) {
	for i := range l.rate {
		used = append(used, l.base[i]+l.rate[i]/l.capacity[i])
	}
	return used
}

// digits is a number as it is reported.
func digits(n float64) string { return strconv.FormatFloat(n, 'g', 2, 64) }

// run runs the loop, and returns the last shares.
func (l *loop) run(seconds int) []float64 {
	shares := make([]float64, len(l.rate))
	for i := range shares {
		shares[i] = 1
	}
	var sent [][]string
	due := int64(0)
	last := ""
	for second := range seconds {
		total := 0.0
		for _, w := range shares {
			total += w
		}
		for i := range l.rate {
			l.rate[i] += (l.requests*shares[i]/total - l.rate[i]) / max(1, l.last)
		}
		l.each(second, l.used())
		if second%l.every == 0 {
			var reports []string
			for i, u := range l.used() {
				report := digits(u * l.noise())
				if l.counted {
					report += " - " + digits(l.rate[i]*l.noise())
				}
				reports = append(reports, report)
			}
			sent = append(sent, reports)
		}
		l.Now += 1000
		at := max(0, second-l.delay) / l.every
		now := fmt.Sprint(sent[at])
		if now == last && (due == 0 || l.Now < due) {
			continue // a host calls a plugin if its input has changed, and when it asks for that
		}
		last = now
		resp := l.decide(sent[at]...)
		if due = 0; resp.RequeueAfter > 0 {
			due = l.Now + resp.RequeueAfter.Milliseconds()
		}
		shares = sdktest.Answers(resp)
	}
	return shares
}

// spread returns the highest utilization relative to the mean.
func spread(used []float64) float64 {
	most, total := 0.0, 0.0
	for _, u := range used {
		most, total = max(most, u), total+u
	}
	return most * float64(len(used)) / total
}

// The utilization of endpoints of different sizes spreads less than with equal shares, for any settings, and the loop comes to
// rest.
func TestUtilizationsConverge(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	rounds := 200
	if testing.Short() {
		rounds = 40
	}
	worst := [2]float64{}
	for round := range rounds {
		counted := round%2 == 0
		l, name := random(t, rnd, counted)
		before := spread(l.used())
		const seconds, of = 6000, 600
		least, most, sum := make([]float64, len(l.rate)), make([]float64, len(l.rate)), 0.0
		l.each = func(second int, used []float64) {
			if second < seconds-of {
				return
			}
			sum += spread(used) / of
			for i, u := range used {
				if second == seconds-of {
					least[i], most[i] = u, u
				}
				least[i], most[i] = min(least[i], u), max(most[i], u)
			}
		}
		l.run(seconds)
		// With requests, shares find the sizes; without, they are proportional, and find the root of them.
		rest := .65
		if counted {
			rest = .35
		}
		if left := (sum - 1) / max(.1, before-1); before > 1.1 {
			worst[round%2] = max(worst[round%2], left)
		}
		if sum > 1+(before-1)*rest+.06 {
			t.Errorf("round %d: %s: spread %.3f, with equal shares %.3f (requests reported: %t)", round, name, sum, before, counted)
		}
		for i := range least {
			if most[i]-least[i] > .1*most[i] { // two steps of shares
				t.Errorf("round %d: %s: endpoint %d has a utilization of %.3f to %.3f in the end", round, name, i, least[i], most[i])
			}
		}
	}
	t.Logf("of the spread with equal shares, %.0f %% is left at most with requests reported, and %.0f %% without", 100*worst[0], 100*worst[1])
}

// On the way there, no endpoint is pushed beyond where the largest deviation began, but for a bounded overshoot, also with noisy
// reports.
func TestUtilizationsDoNotOvershoot(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	rounds := 100
	if testing.Short() {
		rounds = 30
	}
	worst := 0.0
	for round := range rounds {
		l, name := random(t, rnd, round%2 == 0)
		l.noise = func() float64 { return 1 + .05*rnd.NormFloat64() }
		before := spread(l.used())
		l.each = func(second int, used []float64) {
			over := spread(used) - max(before, 1.1)
			if worst = max(worst, over); over > .12 {
				t.Fatalf("round %d: %s: spread %.3f after %d s, at first %.3f", round, name, spread(used), second, before)
			}
		}
		l.run(4000)
	}
	t.Logf("largest overshoot %.1f %% of the mean utilization", 100*worst)
}
