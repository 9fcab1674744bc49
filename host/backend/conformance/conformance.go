// Package conformance checks that a backend.Backend keeps its contract. Every backend runs all tests. A fixture declares
// what a test cannot do to its data plane, and why; the report lists what ran.
//
// Plans and changes are random and reproducible: a failure prints its seed and the difference in the text form of plans.
// SLUICE_CONFORM_SEED=N starts with another seed, SLUICE_CONFORM_DEPTH=N runs N times as many rounds, -short a third.
package conformance

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// Fixture is an empty, isolated data plane and the means to act on it.
type Fixture struct {
	// Open returns a handle on the data plane. Opening again after Close is a restart. One handle is open at a time.
	Open func() (backend.Backend, error)
	// Cleanup removes all of sluice's state. No handle is open at that time.
	Cleanup func(ctx context.Context) error
	// Advance lets time pass for the data plane, by its clock or by sleeping.
	Advance func(d time.Duration)

	// The fields below are optional. Unsupported has the reason for each nil one, by field name.

	// InjectFault makes the k-th message from now fail, counted as in Report.Messages. If lost, the message takes effect
	// and only its reply is lost. disarm removes the fault and reports whether it fired.
	InjectFault func(k int, lost bool) (disarm func() (fired bool))
	// Reject makes the data plane refuse everything about a frontend until undo is called.
	Reject func(k plan.Key) (undo func())
	// AddForeign adds state that sluice does not own, as similar to its own as possible. check verifies that it is
	// unchanged.
	AddForeign func() (check func() error, err error)
	// Corrupt damages the state of a frontend without the backend's knowledge.
	Corrupt func(k plan.Key) error
	// Leftovers lists state of sluice that remains after Cleanup, by means independent of the backend.
	Leftovers func() ([]string, error)
	// Traffic makes connections through the data plane.
	Traffic *Traffic

	Unsupported map[string]string
}

// Run runs all tests. Each test gets its own fixture from open, which registers its cleanup with t.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	cfg := config{seed: envInt(t, "SLUICE_CONFORM_SEED", 1), depth: int(envInt(t, "SLUICE_CONFORM_DEPTH", 1))}
	declared := open(t)
	missing := declared.missing(t)
	tests := []struct {
		name, needs string
		run         func(*session)
	}{
		{"an empty data plane reads as an empty plan", "", (*session).emptyPlan},
		{"read returns the applied plan, normalized", "", (*session).readback},
		{"a second apply writes nothing", "", (*session).idempotence},
		{"a restart keeps all state and writes nothing", "", (*session).restarts},
		{"large pools and many frontends are programmed completely", "", (*session).largePlans},
		{"update cost depends on the change only", "", (*session).incremental},
		{"cleanup removes all state", "", (*session).cleanup},
		{"a failed message leaves each frontend old or new, and the next apply converges", "InjectFault", (*session).faults},
		{"what exceeds the limits of a data plane is cut, and nothing else", "", (*session).oversize},
		{"a frontend that the data plane rejects affects no other", "Reject", (*session).rejected},
		{"foreign state is not modified", "AddForeign", (*session).foreign},
		{"drift is repaired", "Corrupt", (*session).drift},
		{"connections follow the plan", "Traffic", (*session).destinations},
		{"connections match their traces", "Traffic", (*session).traceAgreement},
		{"new connections are distributed by weight", "Traffic", (*session).weights},
		{"a part of the connections is refused by weight", "Traffic", (*session).refusedShare},
		{"established connections survive changes", "Traffic", (*session).established},
		{"the endpoints of frontends with outcomes have counters", "", (*session).outcomeEndpoints},
		{"outcomes of connections are counted", "Traffic", (*session).outcomeConnections},
	}
	var ran, not []string
	for _, test := range tests {
		if why, absent := missing[test.needs]; absent {
			not = append(not, fmt.Sprintf("%s: the fixture has no %s: %s", test.name, test.needs, why))
			continue
		}
		ok := t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			s := &session{T: t, config: cfg, fixture: open(t)}
			s.open()
			defer s.close()
			test.run(s)
		})
		ran = append(ran, fmt.Sprintf("%s: ok %v", test.name, ok))
	}
	t.Logf("conformance from seed %d, depth %d\nran:\n  %s", cfg.seed, cfg.depth, strings.Join(ran, "\n  "))
	if why, absent := missing["Leftovers"]; absent {
		not = append(not, "cleanup is checked by Read alone: the fixture has no Leftovers: "+why)
	}
	if len(not) > 0 {
		t.Logf("not run:\n  %s", strings.Join(not, "\n  "))
	}
}

// missing returns the optional fields that are nil, with their reasons. A missing reason is a test failure.
func (s *Fixture) missing(t *testing.T) map[string]string {
	t.Helper()
	if s.Open == nil || s.Cleanup == nil || s.Advance == nil {
		t.Fatal("conformance: a Fixture needs Open, Cleanup and Advance")
	}
	has := map[string]bool{
		"InjectFault": s.InjectFault != nil, "Reject": s.Reject != nil, "AddForeign": s.AddForeign != nil, "Corrupt": s.Corrupt != nil, "Leftovers": s.Leftovers != nil,
		"Traffic": s.Traffic != nil,
	}
	out := map[string]string{}
	for name, ok := range has {
		why := s.Unsupported[name]
		switch {
		case ok && why != "":
			t.Errorf("conformance: the Fixture has %s but lists it as unsupported: %s", name, why)
		case !ok && why == "":
			t.Errorf("conformance: the Fixture has no %s and no reason in Unsupported", name)
		}
		if !ok {
			out[name] = why
		}
	}
	return out
}

type config struct {
	seed  uint64
	depth int
}

// session is one test on one fixture.
type session struct {
	*testing.T
	config
	fixture Fixture
	backend backend.Backend
	step    string // position in the random sequence, for messages
}

func (s *session) open() {
	s.Helper()
	b, err := s.fixture.Open()
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	s.backend = b
}

func (s *session) close() {
	s.Helper()
	if s.backend == nil {
		return
	}
	if err := s.backend.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	s.backend = nil
}

func (s *session) restart() {
	s.Helper()
	caps := s.backend.Caps()
	s.close()
	s.open()
	if again := s.backend.Caps(); again.Name != caps.Name || again.MaxTotal != caps.MaxTotal || again.Ratios != caps.Ratios {
		s.Fatalf("%s: capabilities changed from %+v to %+v", s.step, caps, again)
	}
}

// maxRequeues bounds how often a backend may ask for another Apply in a row.
const maxRequeues = 10

// maintenanceInterval separates an Apply that completes a change from one that only waits for connections to end, such as
// those of a removed endpoint.
const maintenanceInterval = time.Minute

// applyAndSettle applies next and repeats Apply as long as the backend asks for it, as the engine does.
func (s *session) applyAndSettle(next *plan.Plan, d *plan.Delta) (sum backend.Report, err error) {
	s.Helper()
	before := plan.Format(next)
	for range maxRequeues {
		r, err := s.program(next, d)
		sum.Messages += r.Messages
		sum.Elements += r.Elements
		if err != nil {
			return sum, err
		}
		if plan.Format(next) != before {
			s.Fatalf("%s: Apply changed the plan that it was given", s.step)
		}
		if r.RequeueAfter < 0 {
			s.Fatalf("%s: Report.RequeueAfter is %s", s.step, r.RequeueAfter)
		}
		if r.RequeueAfter == 0 || r.RequeueAfter >= maintenanceInterval {
			return sum, nil
		}
		s.fixture.Advance(r.RequeueAfter)
		d = &plan.Delta{}
	}
	s.Fatalf("%s: Apply still asks to be requeued after %d times", s.step, maxRequeues)
	return sum, nil
}

// program applies what fits the backend of a plan, as the planner does.
func (s *session) program(next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	caps := s.backend.Caps()
	next = plan.Fit(next, caps)
	if d != nil {
		fit := plan.NewFitter(&caps)
		d = &plan.Delta{Global: d.Global, Changes: slices.Clone(d.Changes)}
		for i := range d.Changes {
			c := &d.Changes[i]
			if c.New = next.Frontends[c.Key]; c.Old != nil {
				c.Old = fit.Fit(c.Old)
			}
		}
	}
	return s.backend.Apply(context.Background(), next, d)
}

// apply is an applyAndSettle that must succeed and must result in next.
func (s *session) apply(next *plan.Plan, d *plan.Delta) backend.Report {
	s.Helper()
	r, err := s.applyAndSettle(next, d)
	if err != nil {
		s.Fatalf("%s: apply: %v\nthe plan:\n%s", s.step, err, plan.Format(next))
	}
	s.expectState(next)
	return r
}

func (s *session) read() *plan.Plan {
	s.Helper()
	p, err := s.backend.Read(context.Background())
	if err != nil {
		s.Fatalf("%s: read: %v", s.step, err)
	}
	return p
}

// expectState checks Read(Apply(p)) == Normalize(p, Caps()).
func (s *session) expectState(p *plan.Plan) {
	s.Helper()
	want := plan.Normalize(p, s.backend.Caps())
	got := s.read()
	if !got.Equal(want) {
		s.Fatalf("%s: the data plane differs from the plan (- want, + got):\n%s", s.step, plan.FormatDiff(want, got))
	}
	if err := plan.Validate(got); err != nil {
		s.Fatalf("%s: Read returned an invalid plan: %v", s.step, err)
	}
}

// expectNoWrites applies p again and expects no writes, including those of a requeued Apply.
func (s *session) expectNoWrites(p *plan.Plan, d *plan.Delta) {
	s.Helper()
	r, err := s.applyAndSettle(p, d)
	if err != nil {
		s.Fatalf("%s: the second apply: %v", s.step, err)
	}
	if r.Messages != 0 || r.Elements != 0 {
		s.Fatalf("%s: the second apply of the same plan writes %d messages, %d elements\nthe plan:\n%s", s.step, r.Messages, r.Elements, plan.Format(p))
	}
}

// times scales n by depth, or to a third with -short.
func (c config) times(n int) int {
	if testing.Short() {
		return (n + 2) / 3
	}
	return n * c.depth
}

// rounds calls f with generators of consecutive seeds.
func (s *session) rounds(n int, f func(g *testgen.Plans)) {
	s.Helper()
	for i := range s.times(n) {
		seed := s.seed + uint64(i)
		s.step = fmt.Sprintf("seed %d", seed)
		f(testgen.NewPlans(seed, testgen.PlanOptions{}))
	}
}

func envInt(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		t.Fatalf("%s=%q: want a number from 1", name, text)
	}
	return n
}
