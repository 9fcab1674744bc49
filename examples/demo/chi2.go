package main

import "math"

// significance is the significance level of each test. Every test of every run has to pass, so it is far below the usual 5 %.
// With 4000 connections it still detects a share of 13 % in place of 10 %.
const significance = 1e-6

// chi2 is Pearson's test of counts against shares: p is the probability of counts that deviate at least this much. Shares
// need not sum to 1. A count for a share of 0 is impossible: p is 0.
func chi2(counts []int, shares []float64) (statistic float64, freedom int, p float64) {
	total, sum := 0, 0.0
	for i := range counts {
		total += counts[i]
		sum += shares[i]
		if shares[i] > 0 {
			freedom++
		}
	}
	freedom--
	for i, n := range counts {
		if shares[i] <= 0 {
			if n > 0 {
				return math.Inf(1), freedom, 0
			}
			continue
		}
		want := float64(total) * shares[i] / sum
		statistic += (float64(n) - want) * (float64(n) - want) / want
	}
	if freedom < 1 || total == 0 {
		return statistic, freedom, 1
	}
	return statistic, freedom, regularizedGammaQ(float64(freedom)/2, statistic/2)
}

// regularizedGammaQ is the regularized incomplete gamma function Q(a, x), by its series for x < a+1, where that converges
// quickly, else by its continued fraction (Lentz's method).
func regularizedGammaQ(a, x float64) float64 {
	const enough, tiny = 1e-15, 1e-300
	if x <= 0 {
		return 1
	}
	lg, _ := math.Lgamma(a)
	front := math.Exp(a*math.Log(x) - x - lg)
	if x < a+1 {
		term := 1 / a
		sum := term
		for n := a + 1; term > sum*enough; n++ {
			term *= x / n
			sum += term
		}
		return 1 - front*sum
	}
	b := x + 1 - a
	c, d := 1/tiny, 1/b
	h := d
	for i := 1.0; i < 1000; i++ {
		an := -i * (i - a)
		b += 2
		d = 1 / notZero(an*d+b)
		c = notZero(b + an/c)
		h *= d * c
		if math.Abs(d*c-1) < enough {
			break
		}
	}
	return front * h
}

func notZero(x float64) float64 {
	if math.Abs(x) < 1e-300 {
		return 1e-300
	}
	return x
}
