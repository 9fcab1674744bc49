package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/outcomes"
)

// Guard makes a policy fall back, on a node, to the policies that apply without it when connections fail more often than they
// would with those.
type Guard struct {
	// FailedPercent is how many more of a hundred connections may fail than without the policy, 1–100; 0: there is no guard.
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
	// minBaseline is how many connections a baseline has at least. Until there are so many, the guarded policy waits: without
	// traffic it would decide about nothing.
	minBaseline = 100
	// minFailures is how many connections fail before a policy falls back, however few succeed.
	minFailures = 10
	// minReadings is in how many readings more connections fail than are allowed before a policy falls back: those to an endpoint
	// that has just stopped fail together.
	minReadings = 6
)

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
	// Recent are the connections of the last window in which the policy was in force: with GuardFallenBack, those that were the
	// reason.
	Recent GuardCounts

	readings []guardReading  // of Recent, oldest first
	length   time.Duration   // of all readings
	excess   float64         // of all readings
	current  evidence        // of the reading that is being counted
	early    evidence        // of it: outcomes that are known before it is known what remains unanswered
	waiting  []earlyOutcomes // the early ones of the last readings, oldest first
	bets     bets
	lastAt   int64 // of the last reading, or when the guard was set, Unix milliseconds; 0: in another process
}

// Set sets the guard and the revision of its policy. A policy that has fallen back is tried again with another revision or
// another guard. One that is in force stays in force with another revision, and is compared with the same baseline: only
// connections under the new revision count. While the revision is not known nothing changes.
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
	s.compareAnew()
}

// compareAnew forgets the connections under the policy.
func (s *GuardState) compareAnew() {
	s.Recent, s.readings, s.length, s.excess = GuardCounts{}, nil, 0, 0
	s.bets, s.waiting = bets{}, nil
}

func (s *GuardState) begin(p GuardPhase, now time.Time) {
	s.Phase, s.Since, s.waiting, s.current, s.early = p, now.UnixMilli(), nil, evidence{}, evidence{}
}

// Count counts outcomes of connections for the reading that Add ends, with GuardBaseline under the policies that apply without
// the guarded one, otherwise under the policy.
func (s *GuardState) Count(o GuardOutcomes) {
	s.early.add(GuardCounts{o.Answered + o.Refused, o.Refused}, &o)
	s.current.add(GuardCounts{o.Unanswered, o.Unanswered}, &o)
}

// Add ends a reading of some length. It reports whether the phase has changed. A reading without a length is the base of the next
// one.
func (s *GuardState) Add(length time.Duration, now time.Time) (changed bool) {
	r := s.settle(length)
	if length <= 0 || s.revision == "" {
		return false
	}
	s.lastAt = now.UnixMilli()
	switch s.Phase {
	case GuardBaseline:
		s.Baseline.add(r.counts)
		if s.Baseline.Connections > 0 {
			s.Measured += length
		}
		if s.Measured < s.guard.Window || s.Baseline.Connections < minBaseline {
			return false
		}
		s.begin(GuardInForce, now)
		return true
	case GuardInForce:
		s.slide(guardReading{r.compared, length})
		s.bets.add(&r, s.guard.allowed(), s.Baseline.most())
		if !s.exceeds() {
			return false
		}
		s.begin(GuardFallenBack, now)
		s.readings = nil
		return true
	}
	return false
}

// settle returns what is known of the connections that began early enough to know whether they remain unanswered.
func (s *GuardState) settle(length time.Duration) evidence {
	known := s.current
	s.waiting = append(s.waiting, earlyOutcomes{evidence: s.early})
	s.current, s.early = evidence{}, evidence{}
	done := 0
	for i := range s.waiting {
		w := &s.waiting[i]
		if i < len(s.waiting)-1 {
			w.age += max(0, length)
		}
		if w.age >= outcomes.Grace || s.revision == "" {
			known.merge(&w.evidence)
			done++
		}
	}
	s.waiting = slices.Delete(s.waiting, 0, done)
	return known
}

// slide adds a reading to the window, which begins with a connection, and drops those without which the others still cover it.
func (s *GuardState) slide(r guardReading) {
	if len(s.readings) == 0 && r.counts.Connections == 0 {
		return
	}
	s.readings = append(s.readings, r)
	s.Recent.add(r.counts)
	s.length += r.length
	s.excess += r.excess(s.Baseline.most())
	drop := 0
	for drop < len(s.readings)-minReadings && s.length-s.readings[drop].length >= s.guard.Window {
		old := &s.readings[drop]
		s.Recent.Connections -= old.counts.Connections
		s.Recent.Failed -= old.counts.Failed
		s.length -= old.length
		s.excess -= old.excess(s.Baseline.most())
		drop++
	}
	s.readings = slices.Delete(s.readings, 0, drop)
}

// exceeds reports whether more connections fail than the guard allows, in the last window and in enough of its readings, and
// chance is no explanation.
func (s *GuardState) exceeds() bool {
	allowed := s.guard.allowed()
	if s.Recent.Failed < minFailures || s.excess <= allowed*float64(s.Recent.Connections) || !s.bets.won() {
		return false
	}
	n, unseen := 0, s.Baseline.most()
	for i := range s.readings {
		if r := &s.readings[i]; r.excess(unseen) > allowed*float64(r.counts.Connections) {
			n++
		}
	}
	return n >= minReadings
}

// InForce reports whether the policy decides.
func (s *GuardState) InForce() bool { return s.Phase == GuardInForce }

// BlindAt returns when the guard is blind if there is no reading until then: it has seen nothing for a window. A blind guard
// changes nothing: a policy that is not in force does not come into force, and one that is stays in force.
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
		return fmt.Sprintf("is in force: %s before; the node falls back if %d %% more fail than without it (in the last %s, %s, %s)",
			s.Baseline, s.guard.FailedPercent, s.guard.Window, s.Recent, s.more())
	}
	return fmt.Sprintf("has fallen back: %s in %s, %s, %s before; it is tried again when its revision or its guard changes", s.Recent, s.guard.Window, s.more(), s.Baseline)
}

// more describes how many more connections of the last window failed than would have without the policy.
func (s *GuardState) more() string {
	return fmt.Sprintf("%.1f %% more than without it", 100*s.excess/float64(max(1, s.Recent.Connections)))
}
