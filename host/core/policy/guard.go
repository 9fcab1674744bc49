package policy

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Guard makes a policy fall back, on a node, to the policies that apply without it when connections fail more often than they did with
// those.
type Guard struct {
	// FailedPercent is how many more of a hundred connections may fail than before, 1–100; 0: there is no guard.
	FailedPercent int
	Window        time.Duration // over which connections are counted
}

// GuardPhase is what a guard does.
type GuardPhase uint8

// The phases of a guard, in their order. The policy decides in GuardInForce only.
const (
	GuardBaseline   GuardPhase = iota // counts connections under the policies that apply without the guarded one
	GuardInForce                      // compares connections with the baseline
	GuardFallenBack                   // until the policy changes
)

func (p GuardPhase) String() string { return [...]string{"baseline", "in force", "fallen back"}[p] }

// GuardCounts are connections whose outcome is known.
type GuardCounts struct {
	Connections uint64 `json:"connections"`
	Failed      uint64 `json:"failed"` // of them: refused or unanswered
}

func (c *GuardCounts) add(d GuardCounts) {
	c.Connections += d.Connections
	c.Failed += d.Failed
}

// share returns the failed part.
func (c GuardCounts) share() float64 { return float64(c.Failed) / float64(max(1, c.Connections)) }

// String describes the counts.
func (c GuardCounts) String() string {
	return fmt.Sprintf("%.1f %% of %d connections failed", 100*c.share(), c.Connections)
}

const (
	// minBaseline is how many connections a baseline has at least. Until there are so many, the guarded policy waits: without traffic it
	// would decide about nothing.
	minBaseline = 100
	// minFailures is how many connections fail before a policy falls back, however few succeed: a client that repeats its attempts at
	// one endpoint which has just stopped makes some at once, which are not independent.
	minFailures = 10
	// maxChance is the probability up to which chance does not count as a reason to fall back: that so many connections fail although
	// the share of those that do is the one which the guard allows. A node compares twice a second, and 5,000 nodes have some 14
	// million windows of 30 s a day, but they are not all at the edge of what is allowed: below it, the probability is far smaller.
	maxChance = 1e-6
	// baselineChance is the probability that the baseline had fewer failures than usual by chance: the share before is taken to be as
	// large as it can then have been. That matters while the baseline is short: 100 connections without a failure may mean 4.5 %, 10,000
	// mean 0.05 %.
	baselineChance = 0.01
)

// allowed returns the share of connections that may fail, given those of the baseline. It can be more than 1.
func (g *Guard) allowed(baseline GuardCounts) float64 {
	before := baseline.share()
	low, high := before, 1.0
	for range 50 { // by bisection
		if middle := (low + high) / 2; chance(baseline.Connections, before, middle) > baselineChance {
			low = middle
		} else {
			high = middle
		}
	}
	return low + float64(g.FailedPercent)/100
}

// exceeds reports whether more connections fail than a guard allows, given those of the baseline.
func (g *Guard) exceeds(baseline, now GuardCounts) bool {
	share := now.share()
	if now.Failed < minFailures || share <= baseline.share()+float64(g.FailedPercent)/100 {
		return false
	}
	allowed := g.allowed(baseline)
	return share > allowed && chance(now.Connections, share, allowed) < maxChance
}

// chance returns an upper bound of the probability that a share of n connections fails, or one that is farther away from p, if each
// one fails with the probability p: Chernoff's bound of the binomial distribution. p is neither 0 nor 1 unless the share is.
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

// guardReading is what one reading of outcomes has counted.
type guardReading struct {
	counts GuardCounts
	length time.Duration
}

// GuardState is the state of a policy's guard on this node: a pure state machine that readings of outcomes drive.
type GuardState struct {
	guard    Guard
	revision string // of the policy; "": not known yet

	Phase GuardPhase
	// Since is when the phase began, Unix milliseconds by the planner's clock; 0: in another boot.
	Since int64
	// Baseline are the connections of the baseline, and Measured how long they have been counted.
	Baseline GuardCounts
	Measured time.Duration
	// Recent are the connections of the last window in which the policy was in force: with GuardFallenBack, those that were the reason.
	Recent GuardCounts

	readings []guardReading // of Recent, oldest first
	length   time.Duration  // of all readings
	lastAt   int64          // of the last reading, or when the guard was set, Unix milliseconds; 0: in another process
}

// Set sets the guard and the revision of its policy. A policy that has fallen back is tried again with another revision or another
// guard. One that is in force stays in force with another revision, and is compared with the same baseline: only connections under the
// new revision count. While the revision is not known nothing changes.
func (s *GuardState) Set(g Guard, revision string, now time.Time) {
	if s.lastAt == 0 {
		s.lastAt = now.UnixMilli()
	}
	if revision == "" || g == s.guard && revision == s.revision {
		return
	}
	again := s.revision == "" || g != s.guard || s.Phase != GuardInForce
	s.guard, s.revision = g, revision
	if again {
		s.begin(GuardBaseline, now)
		s.Baseline, s.Measured = GuardCounts{}, 0
	}
	s.Recent, s.readings, s.length = GuardCounts{}, nil, 0
}

func (s *GuardState) begin(p GuardPhase, now time.Time) { s.Phase, s.Since = p, now.UnixMilli() }

// Add takes a reading of outcomes of some length: the connections of the policy's Services, with GuardBaseline under the policies that
// apply without it, otherwise under the policy. It reports whether the phase has changed. A reading without a length is the base of
// the next one.
func (s *GuardState) Add(counts GuardCounts, length time.Duration, now time.Time) (changed bool) {
	if length <= 0 || s.revision == "" {
		return false
	}
	s.lastAt = now.UnixMilli()
	switch s.Phase {
	case GuardBaseline:
		s.Baseline.add(counts)
		s.Measured += length
		if s.Measured < s.guard.Window || s.Baseline.Connections < minBaseline {
			return false
		}
		s.begin(GuardInForce, now)
		return true
	case GuardInForce:
		s.slide(guardReading{counts, length})
		if !s.guard.exceeds(s.Baseline, s.Recent) {
			return false
		}
		s.begin(GuardFallenBack, now)
		s.readings, s.length = nil, 0
		return true
	}
	return false
}

// slide adds a reading to the window, and drops those without which the others still cover it.
func (s *GuardState) slide(r guardReading) {
	s.readings = append(s.readings, r)
	s.Recent.add(r.counts)
	s.length += r.length
	drop := 0
	for drop < len(s.readings)-1 && s.length-s.readings[drop].length >= s.guard.Window {
		old := &s.readings[drop]
		s.Recent.Connections -= old.counts.Connections
		s.Recent.Failed -= old.counts.Failed
		s.length -= old.length
		drop++
	}
	s.readings = slices.Delete(s.readings, 0, drop)
}

// InForce reports whether the policy decides.
func (s *GuardState) InForce() bool { return s.Phase == GuardInForce }

// BlindAt returns when the guard is blind if there is no reading until then: it has seen nothing for a window. A blind guard changes
// nothing: a policy that is not in force does not come into force, and one that is stays in force.
func (s *GuardState) BlindAt() time.Time { return time.UnixMilli(s.lastAt).Add(s.guard.Window) }

// Revision returns the revision of the policy, "" while it has not been known.
func (s *GuardState) Revision() string { return s.revision }

// String describes the state.
func (s *GuardState) String() string {
	switch {
	case s.Phase == GuardBaseline && s.revision == "":
		return "is not in force yet: a plugin is not loaded"
	case s.Phase == GuardBaseline:
		return fmt.Sprintf("is not in force yet: connections are counted without it for %s, and at least %d of them (%d so far)", s.guard.Window, minBaseline, s.Baseline.Connections)
	case s.Phase == GuardInForce:
		return fmt.Sprintf("is in force: %s before; the node falls back if more than %.1f %% do (in the last %s, %s)",
			s.Baseline, 100*s.guard.allowed(s.Baseline), s.guard.Window, s.Recent)
	}
	return fmt.Sprintf("has fallen back: %s in %s, %s before; it is tried again when its revision or its guard changes", s.Recent, s.guard.Window, s.Baseline)
}
