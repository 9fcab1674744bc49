package rebalance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// closedLoop has clients with long-lived connections, which reconnect when they are shed, evenly.
type closedLoop struct {
	s     *session
	open  []float64
	begin []float64 // connections when the shed began, of each endpoint
	shed  []int     // in force
	count int       // seconds between counts
	moved float64   // connections that were shed
}

func (p *closedLoop) run(seconds int, check func(second int)) {
	call, counted, at := 0, []int(nil), 0
	p.begin, p.shed = make([]float64, len(p.open)), make([]int, len(p.open))
	for second := range seconds {
		back := 0.0
		for i := range p.open {
			n := min(p.open[i], p.begin[i]*float64(p.shed[i])/1000/60)
			p.open[i] -= n
			back += n
		}
		p.moved += back
		for i := range p.open {
			p.open[i] += back / float64(len(p.open))
		}
		if p.s.Now += 1000; second%p.count == 0 {
			counted, at = counted[:0], second
			for _, n := range p.open {
				counted = append(counted, int(math.Round(n)))
			}
		}
		if second >= call {
			p.s.age = time.Duration(second-at) * time.Second
			resp := p.s.decide(counted...)
			if call = 1 << 60; resp.RequeueAfter > 0 {
				call = second + int(resp.RequeueAfter.Seconds())
			}
			for i, v := range sheds(resp) {
				if v != p.shed[i] {
					p.shed[i], p.begin[i] = v, p.open[i]
				}
			}
		}
		check(second)
	}
}

// After a scale-up the newcomers get their share, in bounded steps, and then nothing is shed any more.
func TestSharesEvenOut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for round := range 60 {
		old, fresh := 1+rnd.IntN(8), 1+rnd.IntN(8)
		percent := 5 + rnd.IntN(50)
		s := newSession(t, fmt.Sprintf(`{"maxShedPercentPerMinute":%d,"duration":"24h","tolerancePercent":10}`, percent), slices.Concat(since(old, 48*time.Hour), since(fresh, 0))...)
		p := &closedLoop{s: s, open: make([]float64, old+fresh), count: 1 + rnd.IntN(20)}
		for i := range old {
			p.open[i] = float64(200 * (old + fresh) / old)
		}
		last := math.Inf(1)
		even := -1
		p.run(3*3600, func(second int) {
			most, least := slices.Max(p.open), slices.Min(p.open)
			if most-least > last+1e-6 {
				t.Fatalf("round %d: after %d s the spread grows from %.2f to %.2f", round, second, last, most-least)
			}
			last = most - least
			if even < 0 && least >= 200*.88 {
				even = second
			}
		})
		if even < 0 || slices.Max(p.shed) > 0 {
			t.Errorf("round %d: %d and %d endpoints, %d %% a minute: in the end %.0f, sheds %v", round, old, fresh, percent, p.open, p.shed)
		}
	}
}

// In no round an endpoint loses more than it has in excess at its beginning, whenever connections are counted and endpoints come.
func TestNoMoreThanTheExcessIsShed(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for round := range 100 {
		s := newSession(t, `{"maxShedPercentPerMinute":100,"jitter":"20s","tolerancePercent":1,"duration":"1h","minConnections":1}`,
			slices.Concat(since(1+rnd.IntN(5), time.Hour), since(1+rnd.IntN(5), 0))...)
		p := &closedLoop{s: s, open: make([]float64, len(s.Endpoints)), count: 1 + rnd.IntN(40)}
		for i := range p.open {
			p.open[i] = float64(rnd.IntN(1000))
		}
		p.run(1800, func(second int) {
			total := 0.0
			for _, n := range p.open {
				total += n
			}
			for i, v := range p.shed {
				fair := total / float64(len(p.open))
				if loses := p.begin[i] * float64(v) / 1000; loses > max(0, p.begin[i]-fair)+1.5 {
					t.Fatalf("round %d, second %d: endpoint %d sheds %.1f of %.1f, its share is %.1f", round, second, i, loses, p.begin[i], fair)
				}
			}
		})
	}
}
