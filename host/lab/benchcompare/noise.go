package main

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
)

// interval is a ratio, and where it lies with 95 % confidence.
type interval struct{ Ratio, Low, High float64 }

// ratio gives the ratio of b's to a's of some figure, over pairs of blocks that are neighbours in time: the median
// of the pairs, and its percentile bootstrap. The same figures give the same answer.
func ratio(a, b []block, of func(block) float64) interval {
	n := min(len(a), len(b))
	logs := make([]float64, n)
	for i := range n {
		logs[i] = math.Log(of(b[i]) / of(a[i]))
	}
	return bootstrap(logs)
}

// selfRatio compares the first block of a path in each round with the second, in the order that the rounds alternate in:
// what comes out is noise.
func selfRatio(a []block, of func(block) float64) interval {
	var logs []float64
	for i := 0; i+1 < len(a); i += 2 {
		logs = append(logs, math.Log(of(a[i+1])/of(a[i])))
	}
	return bootstrap(logs)
}

const resamples = 4000

func bootstrap(logs []float64) interval {
	if len(logs) == 0 {
		return interval{math.NaN(), math.NaN(), math.NaN()}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	median := func(v []float64) float64 {
		v = slices.Clone(v)
		slices.Sort(v)
		return benchutil.Quantile(v, 0.5)
	}
	medians, sample := make([]float64, resamples), make([]float64, len(logs))
	for i := range medians {
		for j := range sample {
			sample[j] = logs[rng.IntN(len(logs))]
		}
		medians[i] = median(sample)
	}
	slices.Sort(medians)
	return interval{math.Exp(median(logs)), math.Exp(benchutil.Quantile(medians, 0.025)), math.Exp(benchutil.Quantile(medians, 0.975))}
}

// verdict says what a ratio of b's to a's means, beside what a's to its own was. Only what is clear of 1 and further
// from it than noise got is a difference.
func verdict(got, noise interval, moreIsBetter bool) string {
	most := math.Max(math.Abs(math.Log(noise.Low)), math.Abs(math.Log(noise.High)))
	better, worse := got.Low > 1 && math.Log(got.Ratio) > most, got.High < 1 && -math.Log(got.Ratio) > most
	if !moreIsBetter {
		better, worse = worse, better
	}
	switch {
	case better:
		return "better"
	case worse:
		return "worse"
	}
	return "no difference beyond noise"
}
