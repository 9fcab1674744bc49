// Package stats summarizes measured values. It is pure and deterministic.
package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Summary has the number, median, 99th percentile and maximum of values; all are 0 without values.
type Summary struct {
	N                int
	Median, P99, Max float64
}

// Summarize returns the summary of values. It sorts them.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	slices.Sort(values)
	return Summary{len(values), Quantile(values, 0.5), Quantile(values, 0.99), values[len(values)-1]}
}

// Quantile returns a quantile of sorted values, of which there must be one, with linear interpolation.
func Quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Bootstrap returns the median of values and its 95 % confidence interval by percentile bootstrap, NaN without values.
// The result is deterministic.
func Bootstrap(values []float64) (median, low, high float64) {
	const resamples = 4000
	if len(values) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	rng := rand.New(rand.NewPCG(1, 2))
	medianOf := func(v []float64) float64 {
		v = slices.Clone(v)
		slices.Sort(v)
		return Quantile(v, 0.5)
	}
	medians, sample := make([]float64, resamples), make([]float64, len(values))
	for i := range medians {
		for j := range sample {
			sample[j] = values[rng.IntN(len(values))]
		}
		medians[i] = medianOf(sample)
	}
	slices.Sort(medians)
	return medianOf(values), Quantile(medians, 0.025), Quantile(medians, 0.975)
}

// Interval is a median with its 95 % confidence interval.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Ratios returns by what factor b differs from a. Both have two values of each round, measured in the order a, b, b, a, so that a drift of
// the machine cancels out.
func Ratios(a, b []float64) Interval {
	var ratios []float64
	for i := 0; i+1 < min(len(a), len(b)); i += 2 {
		ratios = append(ratios, math.Sqrt(b[i]*b[i+1]/(a[i]*a[i+1])))
	}
	median, low, high := Bootstrap(ratios)
	return Interval{median, low, high}
}
