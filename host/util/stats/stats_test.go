package stats_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

func TestSummarize(t *testing.T) {
	if got := stats.Summarize(nil); got != (stats.Summary{}) {
		t.Errorf("of nothing: %+v", got)
	}
	if got := stats.Summarize([]float64{3}); got != (stats.Summary{1, 3, 3, 3}) {
		t.Errorf("of one: %+v", got)
	}
	if got := stats.Summarize([]float64{4, 1, 3, 2}); got.Median != 2.5 || got.Max != 4 || got.P99 <= 3.9 || got.P99 > 4 {
		t.Errorf("of four: %+v", got)
	}
}

// TestRatiosIgnoreADrift: values grow during the measurement, and b takes 1.3 times as long.
func TestRatiosIgnoreADrift(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var a, b []float64
	for i := range 100 {
		value := func(step int) float64 { return math.Pow(1.01, float64(4*i+step)) * (1 + 0.1*random.Float64()) }
		a = append(a, value(0), value(3))
		b = append(b, 1.3*value(1), 1.3*value(2))
	}
	if got := stats.Ratios(a, b); got.Low > 1.3 || got.High < 1.3 || got.High-got.Low > 0.05 {
		t.Errorf("%+v", got)
	}
	if stats.Ratios(a, b) != stats.Ratios(a, b) {
		t.Error("the same values give another answer")
	}
	if got := stats.Noise(a); got.Low > 1 || got.High < 1 {
		t.Errorf("noise: %+v", got)
	}
	if got := stats.Ratios(nil, nil); !math.IsNaN(got.Median) {
		t.Errorf("of nothing: %+v", got)
	}
}
