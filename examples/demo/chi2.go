package main

import "math"

// significance is how seldom a right data plane may be called wrong, a test: every test of every run has to pass, so it
// is far below the usual 5 %. A share of 10 % that is really 13 % is still caught with 4000 connections.
const significance = 1e-6

// chi2 is Pearson's test of counts against wanted shares: how likely counts at least this far off are when connections
// are spread by these shares. Shares need not sum to 1. A count where the share is 0 is impossible: p is 0.
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

// regularizedGammaQ is the regularised incomplete gamma function Q(a, x): by its series below a+1, where that converges
// quickly, and by its continued fraction (Lentz's method) above.
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
