package replay

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestSeriesIsTheMeanOfEachStep compares a Series with a step function that is looked up every millisecond.
func TestSeriesIsTheMeanOfEachStep(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		ports := 1 + random.IntN(5)
		now := make([]float64, ports)
		var s series
		var sums []float64 // by millisecond
		var differ []int
		most := time.Second
		if seed%3 == 0 {
			most = 20 * time.Second // longer than maxBuckets steps of a second
		}
		at := time.Duration(0)
		for range 50 {
			for next := at + time.Duration(random.IntN(int(most/time.Millisecond)))*time.Millisecond; at < next; at += time.Millisecond {
				sum, n := 0.0, 0
				for _, v := range now {
					sum += v
					if v > 0 {
						n++
					}
				}
				sums, differ = append(sums, sum), append(differ, n)
			}
			s.pass(at)
			i := random.IntN(ports)
			after := float64(random.IntN(3)) / 2
			s.set(now[i], after)
			now[i] = after
		}
		got := s.finish(ports)
		step := int(got.StepSeconds * 1000)
		if len(got.Divergence) != (len(sums)+step-1)/step || len(got.Divergence) > maxBuckets || len(got.Differing) != len(got.Divergence) {
			t.Fatalf("seed %d: %d steps of %g s for %d ms", seed, len(got.Divergence), got.StepSeconds, len(sums))
		}
		for i := range got.Divergence {
			want, most, n := 0.0, 0, 0
			for j := i * step; j < min((i+1)*step, len(sums)); j++ {
				want += sums[j]
				most = max(most, differ[j])
				n++
			}
			if want /= float64(n * ports); math.Abs(got.Divergence[i]-want) > 1e-9 || got.Differing[i] != most {
				t.Errorf("seed %d: step %d: %g and %d, want %g and %d", seed, i, got.Divergence[i], got.Differing[i], want, most)
			}
		}
	}
}
