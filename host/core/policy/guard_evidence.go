package policy

import (
	"math"
	"time"
)

// GuardOutcomes are outcomes of connections to an endpoint of a Service, and where they would have gone without the policy.
type GuardOutcomes struct {
	Answered, Refused, Unanswered uint64
	// More is which part of the connections to the endpoint goes to others without the policy: 0 if it gets the same share,
	// negative if it gets more.
	More float64
	// Least is the least More of the Service's endpoints, -1 to 0.
	Least float64
	// Unseen is the share of the Service's connections that goes, without the policy, to endpoints that get none, or hardly any,
	// of them.
	Unseen float64
}

// stakes are the stakes of the bets against a policy, for large and small differences.
var stakes = [...]float64{0.1, 0.3, 0.6, 0.9, 2, 5, 15, 50}

// maxChance is the probability, for each reading, that a node falls back from a policy under which no more connections fail than
// the guard allows, if they fail independently of each other. If the policy changes nothing, it is 0.
const maxChance = 1e-8

// unseenChance is the probability that the baseline had fewer failures than usual by chance: connections to endpoints that the
// policy does not use are taken to fail as often as it can then have been. 100 connections without a failure may mean 4.5 %,
// 10,000 mean 0.05 %.
const unseenChance = 0.01

// compared are connections compared with those without the policy.
type compared struct {
	counts GuardCounts
	more   float64 // failures, by the part of their connections that goes to other endpoints without the policy
	unseen float64 // connections that go to unseen endpoints without it
}

// evidence is what is known of some connections. The indices are those of stakes.
type evidence struct {
	compared
	// gains are the logarithms of the gains of the failures; staked and stakedUnseen are the connections, and those to unseen
	// endpoints without the policy, on which the stakes were paid.
	gains, staked, stakedUnseen [len(stakes)]float64
}

// guardReading is a reading of the window.
type guardReading struct {
	compared
	length time.Duration
}

// earlyOutcomes wait until it is known which connections that began with theirs remain unanswered.
type earlyOutcomes struct {
	evidence
	age time.Duration
}

// add adds connections to an endpoint.
func (e *evidence) add(c GuardCounts, o *GuardOutcomes) {
	if c.Connections == 0 {
		return
	}
	n, failed := float64(c.Connections), float64(c.Failed)
	e.counts.add(c)
	e.more += failed * o.More
	e.unseen += n * o.Unseen
	for i, stake := range stakes {
		if stake*o.Least <= -1 {
			continue // a failure would lose more than there is
		}
		e.staked[i] += n
		e.stakedUnseen[i] += n * o.Unseen
		if failed > 0 && o.More != 0 {
			e.gains[i] += failed * math.Log1p(stake*o.More)
		}
	}
}

func (e *evidence) merge(f *evidence) {
	e.counts.add(f.counts)
	e.more += f.more
	e.unseen += f.unseen
	for i := range stakes {
		e.gains[i] += f.gains[i]
		e.staked[i] += f.staked[i]
		e.stakedUnseen[i] += f.stakedUnseen[i]
	}
}

// excess returns how many connections fail in addition to those that would without the policy, given the share of connections to
// unseen endpoints that fails.
func (e *compared) excess(unseen float64) float64 { return e.more - unseen*e.unseen }

// bets are bets that connections fail because of the policy, one for each stake. A bet multiplies its capital with (1 + stake ×
// more) / (1 + stake × allowed) for a connection that fails, and divides it by the latter for one that does not: while no more
// fail than are allowed, the capital is a supermartingale, however often one looks. Each begins anew when it has lost, at any
// reading, so the probability that one of them reaches a capital C within n readings is at most n/C (Shiryaev and Roberts'
// statistic, which is never below it).
type bets struct {
	capital [len(stakes)]float64 // logarithms
}

// add takes a reading, given how much more may fail, and what share of connections to unseen endpoints fails.
func (b *bets) add(e *evidence, allowed, unseen float64) {
	for i, stake := range stakes {
		if e.staked[i] == 0 {
			continue
		}
		paid := math.Log1p(stake * (allowed + unseen*e.stakedUnseen[i]/e.staked[i]))
		b.capital[i] = max(0, b.capital[i]) + e.gains[i] - e.staked[i]*paid
	}
}

// won reports whether chance does not explain what a bet has won.
func (b *bets) won() bool {
	for _, c := range b.capital {
		if c >= math.Log(float64(len(stakes))/maxChance) {
			return true
		}
	}
	return false
}

// allowed returns the share of connections that may fail in addition to those that fail without the policy.
func (g *Guard) allowed() float64 { return float64(g.FailedPercent) / 100 }

// most returns the share of connections that may have failed in the long run, given those of the baseline.
func (c GuardCounts) most() float64 {
	share := c.share()
	low, high := share, 1.0
	for range 50 { // by bisection
		if middle := (low + high) / 2; chance(c.Connections, share, middle) > unseenChance {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// chance returns an upper bound of the probability that a share of n connections fails, or one that is farther away from p, if
// each one fails with the probability p: Chernoff's bound of the binomial distribution. p is neither 0 nor 1 unless the share is.
func chance(n uint64, share, p float64) float64 {
	divergence := 0.0
	if share > 0 {
		divergence += share * math.Log(share/p)
	}
	if share < 1 {
		divergence += (1 - share) * math.Log((1-share)/(1-p))
	}
	return math.Exp(-float64(n) * divergence)
}
