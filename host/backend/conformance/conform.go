// Package conformance is the conformance kit: the law of backend.Backend, as tests that every backend has to pass. There
// is no list of what a backend may skip; a subject only says what cannot be done to its data plane from a test, and
// why, and the kit reports what ran.
//
// Plans and their changes are random and repeatable: a failure prints its seed and what differs, in the text form of
// plans. SLUICE_CONFORM_SEED=N begins at another seed; SLUICE_CONFORM_DEPTH=N does N times as much,
// and -short a third.
package conformance

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/lab/plangen"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Subject is a data plane of its own, empty and apart from everything else, and what can be done to it.
type Subject struct {
	// Open gives a handle on the data plane. Opening again after Close is a restart. One handle is open at a time.
	Open func() (backend.Backend, error)
	// Cleanup takes out everything that is sluice's. No handle is open then.
	Cleanup func(ctx context.Context) error
	// Advance lets time pass for the data plane: by its clock, or by sleeping.
	Advance func(d time.Duration)

	// What follows may be left out, and then Without says why, by the field's name.

	// Inject makes the message fail that is the k-th from now, counted as Report.Messages does; lost: it takes effect
	// and only its answer is lost. The function takes the fault away again and tells whether it fired.
	Inject func(k int, lost bool) (disarm func() (fired bool))
	// Foreign puts things into the data plane that are not sluice's, as close to its own as can be. The function
	// checks that they are untouched.
	Foreign func() (check func() error, err error)
	// Drift damages what is programmed for a frontend, behind the backend's back.
	Drift func(k plan.Key) error
	// Traces finds what is left of sluice's after Cleanup by other means than the backend's.
	Traces func() ([]string, error)
	// Wire makes connections through the data plane.
	Wire *Wire

	Without map[string]string
}

// Run checks the law. Each test gets a subject of its own from open, which registers its own clean-up with t.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	cfg := config{seed: envInt(t, "SLUICE_CONFORM_SEED", 1), depth: int(envInt(t, "SLUICE_CONFORM_DEPTH", 1))}
	declared := open(t)
	missing := declared.missing(t)
	tests := []struct {
		name, needs string
		run         func(*session)
	}{
		{"an empty data plane reads as an empty plan", "", (*session).emptyReads},
		{"what is read is what was applied, normalised", "", (*session).readsBack},
		{"a second apply sends nothing", "", (*session).appliesOnce},
		{"a restart keeps everything and sends nothing", "", (*session).restarts},
		{"big pools and many frontends arrive whole", "", (*session).big},
		{"a change costs what it is", "", (*session).incremental},
		{"cleanup leaves nothing", "", (*session).cleansUp},
		{"a failed message leaves each frontend old or new, and the next apply converges", "Inject", (*session).faults},
		{"what is not sluice's is untouched", "Foreign", (*session).foreign},
		{"drift is repaired", "Drift", (*session).drift},
		{"connections go where the plan says", "Wire", (*session).destinations},
		{"traces and connections agree", "Wire", (*session).traces},
		{"new connections share out by weight", "Wire", (*session).weights},
		{"established connections outlive changes", "Wire", (*session).established},
	}
	var ran, not []string
	for _, test := range tests {
		if why, absent := missing[test.needs]; absent {
			not = append(not, fmt.Sprintf("%s: the subject has no %s: %s", test.name, test.needs, why))
			continue
		}
		ok := t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			s := &session{T: t, config: cfg, sub: open(t)}
			s.open()
			defer s.close()
			test.run(s)
		})
		ran = append(ran, fmt.Sprintf("%s: ok %v", test.name, ok))
	}
	t.Logf("conformance from seed %d, depth %d\nran:\n  %s", cfg.seed, cfg.depth, strings.Join(ran, "\n  "))
	if why, absent := missing["Traces"]; absent {
		not = append(not, "cleanup is checked by Read alone: the subject has no Traces: "+why)
	}
	if len(not) > 0 {
		t.Logf("not run:\n  %s", strings.Join(not, "\n  "))
	}
}

// missing gives the optional parts that the subject does not have, with its reasons; no reason is a failure.
func (s *Subject) missing(t *testing.T) map[string]string {
	t.Helper()
	if s.Open == nil || s.Cleanup == nil || s.Advance == nil {
		t.Fatal("conform: a Subject needs Open, Cleanup and Advance")
	}
	has := map[string]bool{
		"Inject": s.Inject != nil, "Foreign": s.Foreign != nil, "Drift": s.Drift != nil, "Traces": s.Traces != nil, "Wire": s.Wire != nil,
	}
	out := map[string]string{}
	for name, ok := range has {
		why := s.Without[name]
		switch {
		case ok && why != "":
			t.Errorf("conform: the Subject has %s and says why it has none: %s", name, why)
		case !ok && why == "":
			t.Errorf("conform: the Subject has no %s and does not say why", name)
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

// session is one test on one subject.
type session struct {
	*testing.T
	config
	sub     Subject
	backend backend.Backend
	where   string // in the random sequence, for messages
}

func (s *session) open() {
	s.Helper()
	b, err := s.sub.Open()
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
		s.Fatalf("%s: capabilities changed from %+v to %+v", s.where, caps, again)
	}
}

// maxSettle bounds how often a backend may ask for another Apply.
const maxSettle = 10

// housekeeping is from how long on the other Apply that a backend asks for is no part of a change: it looks after what
// only time ends, the connections of a member that has left for one.
const housekeeping = time.Minute

// try brings the data plane to next and lets it settle as the engine would.
func (s *session) try(next *plan.Plan, d *plan.Delta) (sum backend.Report, err error) {
	s.Helper()
	before := plan.Format(next)
	for range maxSettle {
		r, err := s.backend.Apply(context.Background(), next, d)
		sum.Messages += r.Messages
		sum.Elements += r.Elements
		if err != nil {
			return sum, err
		}
		if plan.Format(next) != before {
			s.Fatalf("%s: Apply changed the plan that it was given", s.where)
		}
		if r.RequeueAfter < 0 {
			s.Fatalf("%s: Report.Again is %s", s.where, r.RequeueAfter)
		}
		if r.RequeueAfter == 0 || r.RequeueAfter >= housekeeping {
			return sum, nil
		}
		s.sub.Advance(r.RequeueAfter)
		d = &plan.Delta{}
	}
	s.Fatalf("%s: after %d times of waiting as long as asked, Apply still asks for another", s.where, maxSettle)
	return sum, nil
}

// apply is try that must succeed, and must give what was asked for.
func (s *session) apply(next *plan.Plan, d *plan.Delta) backend.Report {
	s.Helper()
	r, err := s.try(next, d)
	if err != nil {
		s.Fatalf("%s: apply: %v\nthe plan:\n%s", s.where, err, plan.Format(next))
	}
	s.holds(next)
	return r
}

func (s *session) read() *plan.Plan {
	s.Helper()
	p, err := s.backend.Read(context.Background())
	if err != nil {
		s.Fatalf("%s: read: %v", s.where, err)
	}
	return p
}

// holds checks Read(Apply(p)) == Normalize(p, Caps()).
func (s *session) holds(p *plan.Plan) {
	s.Helper()
	want, _ := plan.Normalize(p, s.backend.Caps())
	got := s.read()
	if !got.Equal(want) {
		s.Fatalf("%s: the data plane holds something else (- wanted, + read):\n%s", s.where, plan.FormatDiff(want, got))
	}
	if err := plan.Validate(got); err != nil {
		s.Fatalf("%s: what is read is no valid plan: %v", s.where, err)
	}
}

// quiet checks that bringing the data plane to p once more sends nothing. A backend may ask for another Apply, to look
// at what packets changed meanwhile, say; that one sends nothing either.
func (s *session) quiet(p *plan.Plan, d *plan.Delta) {
	s.Helper()
	r, err := s.try(p, d)
	if err != nil {
		s.Fatalf("%s: the second apply: %v", s.where, err)
	}
	if r.Messages != 0 || r.Elements != 0 {
		s.Fatalf("%s: the second apply of the same plan sends %d messages, %d elements\nthe plan:\n%s", s.where, r.Messages, r.Elements, plan.Format(p))
	}
}

// times is how often to do what n times is usual of: depth times as often, with -short a third.
func (c config) times(n int) int {
	if testing.Short() {
		return (n + 2) / 3
	}
	return n * c.depth
}

// rounds runs f with generators of consecutive seeds.
func (s *session) rounds(n int, f func(g *plangen.Gen)) {
	s.Helper()
	for i := range s.times(n) {
		seed := s.seed + uint64(i)
		s.where = fmt.Sprintf("seed %d", seed)
		f(plangen.New(seed, plangen.Options{}))
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
