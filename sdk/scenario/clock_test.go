package scenario_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// trace is what happens on a clock.
type trace struct {
	clock scenario.Clock
	seen  []string
}

func (tr *trace) note(what string) { tr.seen = append(tr.seen, fmt.Sprint(what, " ", tr.clock.Now())) }

func newTrace() *trace {
	tr := &trace{}
	tr.clock.Settle = func() error { tr.note("settle"); return nil }
	return tr
}

func (tr *trace) timer(what string) *scenario.Timer {
	return tr.clock.Timer(func() error { tr.note(what); return nil })
}

func TestStatementsFollowWhatIsDueAtTheirTime(t *testing.T) {
	tr := newTrace()
	verbs := scenario.NewVerbs(scenario.Verb[*trace]{Usage: "say NAME", Do: func(tr *trace, s *scenario.Statement) error {
		tr.note(s.Args[0])
		tr.clock.After(time.Second, func() error { tr.note("after " + s.Args[0]); return nil })
		return nil
	}})
	if err := verbs.Run(parse(t, "say a\nat 1s\nsay b\nsay c\nat 5s\nsay d"), &tr.clock, tr); err != nil {
		t.Fatal(err)
	}
	if err := tr.clock.Finish(time.Minute); err != nil {
		t.Fatal(err)
	}
	want := []string{"a 0s", "settle 0s", "after a 1s", "b 1s", "c 1s", "settle 1s", "after b 2s", "after c 2s", "settle 2s", "d 5s", "settle 5s", "after d 6s", "settle 6s"}
	if !slices.Equal(tr.seen, want) {
		t.Errorf("%q, want %q", tr.seen, want)
	}
}

func TestTimersAreSetAgainAndStopped(t *testing.T) {
	tr := newTrace()
	tr.clock.Settle = nil
	moved, stopped, first := tr.timer("moved"), tr.timer("stopped"), tr.timer("first")
	moved.Set(time.Second)
	stopped.Set(2 * time.Second)
	first.Set(3 * time.Second)
	moved.Set(3 * time.Second)
	stopped.Stop()
	stopped.Stop()
	if err := tr.clock.Advance(4 * time.Second); err != nil || !slices.Equal(tr.seen, []string{"first 3s", "moved 3s"}) || tr.clock.Now() != 4*time.Second {
		t.Error(tr.seen, tr.clock.Now(), err)
	}
	moved.Set(time.Second) // in the past: it is due
	if err := tr.clock.Advance(5 * time.Second); err != nil || tr.seen[2] != "moved 4s" {
		t.Error(tr.seen, err)
	}
}

func TestSettleSetsATimerBeforeTheNextOne(t *testing.T) {
	tr := newTrace()
	soon := tr.timer("soon")
	tr.clock.Settle = func() error {
		if len(tr.seen) == 0 {
			soon.Set(time.Second)
		}
		return nil
	}
	if err := tr.clock.Advance(3 * time.Second); err != nil || !slices.Equal(tr.seen, []string{"soon 1s"}) {
		t.Error(tr.seen, err)
	}
}

func TestErrorsEndTheTime(t *testing.T) {
	broken := errors.New("broken")
	fails := func() error { return broken }
	tr := newTrace()
	tr.clock.After(time.Second, fails)
	if err := tr.clock.Advance(time.Minute); !errors.Is(err, broken) || tr.clock.Now() != time.Second {
		t.Error(err, tr.clock.Now())
	}
	tr.clock.Settle = fails
	if err := tr.clock.Finish(0); !errors.Is(err, broken) {
		t.Error(err)
	}
	verbs := scenario.NewVerbs(scenario.Verb[*trace]{Usage: "say", Do: func(*trace, *scenario.Statement) error { return broken }})
	if err := verbs.Run(parse(t, "say"), &scenario.Clock{}, tr); err == nil || err.Error() != "x.scenario:1: say: broken" {
		t.Error(err)
	}
}
