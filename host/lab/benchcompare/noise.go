package main

import (
	"math"

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

func bootstrap(logs []float64) interval {
	median, low, high := benchutil.Bootstrap(logs)
	return interval{math.Exp(median), math.Exp(low), math.Exp(high)}
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
