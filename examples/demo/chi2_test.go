package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Values from tables of the distribution.
func TestChi2MatchesDistributionTables(t *testing.T) {
	for _, c := range []struct {
		freedom   int
		statistic float64
		p         float64
	}{
		{1, 3.841459, 0.05}, {1, 6.634897, 0.01}, {2, 5.991465, 0.05}, {5, 1.145476, 0.95}, {8, 20.09024, 0.01},
		{10, 29.58830, 0.001}, {30, 43.77297, 0.05}, {1, 23.92813, 1e-6}, {2, 27.63102, 1e-6},
	} {
		got := regularizedGammaQ(float64(c.freedom)/2, c.statistic/2)
		if math.Abs(got-c.p) > c.p*1e-5 {
			t.Errorf("Q(%g; %d) = %g, want %g", c.statistic, c.freedom, got, c.p)
		}
	}
}

func TestChi2Example(t *testing.T) {
	// Wanted 30, 50, 20 of 100: (35-30)²/30 + (45-50)²/50 + 0 = 1.3333; two degrees of freedom: exp(-x/2).
	stat, freedom, p := chi2([]int{35, 45, 20}, []float64{3, 5, 2})
	if math.Abs(stat-4.0/3) > 1e-12 || freedom != 2 || math.Abs(p-math.Exp(-2.0/3)) > 1e-12 {
		t.Errorf("got χ² %g, %d degrees, p %g", stat, freedom, p)
	}
}

func TestChi2WithAZeroShare(t *testing.T) {
	if _, freedom, p := chi2([]int{50, 50, 0}, []float64{.5, .5, 0}); freedom != 1 || p != 1 {
		t.Errorf("nothing where nothing is wanted: %d degrees, p %g; want 1 and 1", freedom, p)
	}
	if _, _, p := chi2([]int{2000, 1999, 1}, []float64{.5, .5, 0}); p != 0 {
		t.Errorf("one connection where none is wanted: p %g, want 0", p)
	}
	if _, _, p := chi2([]int{100, 0}, []float64{1, 0}); p != 1 {
		t.Errorf("a single endpoint has all: p %g, want 1", p)
	}
}

func TestChi2AcceptsRightAndRejectsWrongShares(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	right := []float64{9, 2, 2, 2, 2, 2, 2}
	draw := func(shares []float64) []int {
		total := 0.0
		for _, s := range shares {
			total += s
		}
		counts := make([]int, len(shares))
		for range 4000 {
			x := rng.Float64() * total
			i := 0
			for ; i < len(shares)-1 && x >= shares[i]; i++ {
				x -= shares[i]
			}
			counts[i]++
		}
		return counts
	}
	low := 0
	for range 1000 {
		_, _, p := chi2(draw(right), right)
		if p < significance {
			t.Fatalf("right shares failed: p %g", p)
		}
		if p < 0.05 {
			low++
		}
	}
	if low < 25 || low > 85 { // 50 ± 5 standard deviations
		t.Errorf("%d of 1000 right samples were below p = 5 %%, want about 50", low)
	}
	for name, wrong := range map[string][]float64{
		"even":                {1, 1, 1, 1, 1, 1, 1},
		"one endpoint + 50 %": {9, 3, 2, 2, 2, 2, 2},
		"one endpoint missed": {9, 0, 2, 2, 2, 2, 2},
	} {
		if _, _, p := chi2(draw(wrong), right); p >= significance {
			t.Errorf("%s: p %g was not caught", name, p)
		}
	}
}
