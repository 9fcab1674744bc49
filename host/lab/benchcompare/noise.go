package main

import (
	"math"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

// interval is a ratio with its 95 % confidence interval.
type interval struct{ Ratio, Low, High float64 }

// ratio returns the median ratio of b to a over pairs of neighbouring blocks, with its bootstrap interval. It is
// deterministic.
func ratio(a, b []block, value func(block) float64) interval {
	n := min(len(a), len(b))
	logs := make([]float64, n)
	for i := range n {
		logs[i] = math.Log(value(b[i]) / value(a[i]))
	}
	return bootstrap(logs)
}

// selfRatio compares the two blocks of a target in each round: the result is noise.
func selfRatio(a []block, value func(block) float64) interval {
	var logs []float64
	for i := 0; i+1 < len(a); i += 2 {
		logs = append(logs, math.Log(value(a[i+1])/value(a[i])))
	}
	return bootstrap(logs)
}

func bootstrap(logs []float64) interval {
	median, low, high := stats.Bootstrap(logs)
	return interval{math.Exp(median), math.Exp(low), math.Exp(high)}
}

// verdict classifies a ratio. It is a difference only if its interval excludes 1 and the ratio is further from 1 than the
// interval of the noise.
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
