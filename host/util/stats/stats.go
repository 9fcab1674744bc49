// Package stats summarizes measured values. It is pure and deterministic.
package stats

import (
	"fmt"
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

// Of returns a value of each item.
func Of[T any](items []T, value func(T) float64) []float64 {
	out := make([]float64, len(items))
	for i, item := range items {
		out[i] = value(item)
	}
	return out
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

// Interval is a median with its 95 % confidence interval.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Text formats an interval with a number of decimals.
func (i Interval) Text(decimals int) string {
	return fmt.Sprintf("%.*f (%.*f–%.*f)", decimals, i.Median, decimals, i.Low, decimals, i.High)
}

// bootstrap returns the median of values with its interval by percentile bootstrap, NaN without values. It is deterministic.
func bootstrap(values []float64) Interval {
	const resamples = 4000
	if len(values) == 0 {
		return Interval{math.NaN(), math.NaN(), math.NaN()}
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
	return Interval{medianOf(values), Quantile(medians, 0.025), Quantile(medians, 0.975)}
}

// Ratios returns by what factor b differs from a. Both have two values of each round, measured in the order a, b, b, a, so that a
// drift of the machine cancels out.
func Ratios(a, b []float64) Interval {
	var ratios []float64
	for i := 0; i+1 < min(len(a), len(b)); i += 2 {
		ratios = append(ratios, math.Sqrt(b[i]*b[i+1]/(a[i]*a[i+1])))
	}
	return bootstrap(ratios)
}

// Noise compares the two values of each round with each other, in alternating order: by so much, values differ that are the same.
func Noise(a []float64) Interval {
	var ratios []float64
	for i := 0; i+1 < len(a); i += 2 {
		r := a[i+1] / a[i]
		if i%4 == 0 {
			r = 1 / r
		}
		ratios = append(ratios, r)
	}
	return bootstrap(ratios)
}
