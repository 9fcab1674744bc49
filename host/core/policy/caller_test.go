package policy

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// lateCaller makes calls when the test says so, as host/node/agent/dispatch does.
type lateCaller struct {
	immediate bool // answers at once
	full      bool // keeps no new call that can be asked for again
	queued    []*Call
	running   []*Call
	places    []*Call // that are not kept
	accepted  int
}

func sameCall(c *Call) func(*Call) bool {
	return func(o *Call) bool { return o.Key == c.Key && o.Name == c.Name && o.Shadow == c.Shadow }
}

func (l *lateCaller) take(calls []*Call) {
	for _, c := range calls {
		i := slices.IndexFunc(l.queued, sameCall(c))
		switch {
		case c.Plugin == nil:
			l.queued, l.places = slices.DeleteFunc(l.queued, sameCall(c)), slices.DeleteFunc(l.places, sameCall(c))
		case i >= 0:
			l.queued[i] = c
		case slices.ContainsFunc(l.running, sameCall(c)), slices.ContainsFunc(l.places, sameCall(c)):
		case l.full && c.Repeatable():
			l.places = append(l.places, c)
		default:
			l.accepted++
			l.queued = append(l.queued, c)
		}
	}
}

// retry asks for the calls that were not kept, if there is room.
func (l *lateCaller) retry(e *Evaluator) {
	if l.full {
		return
	}
	places := l.places
	l.places = nil
	for _, c := range places {
		again := c.Key.Again(c.Name)
		again.Shadow = c.Shadow
		e.Answer(again)
	}
}

// begin starts the first queued call.
func (l *lateCaller) begin() {
	l.running = append(l.running, l.queued[0])
	l.queued = l.queued[1:]
}

// end ends the first running call and delivers it.
func (l *lateCaller) end(e *Evaluator) {
	c := l.running[0]
	l.running = l.running[1:]
	c.Do()
	e.Answer(c)
}

func newLateFixture(plugins ...*fakePlugin) (*fixture, *lateCaller) {
	b := newFixture(plugins...)
	b.late = &lateCaller{}
	return b, b.late
}

func (b *fixture) expectPending(t *testing.T, what string, from Origin, weights ...uint16) {
	t.Helper()
	d := b.expect(t, what, from, weights...)
	if d.Pending == nil || d.Pending.Plugin == "" || d.Pending.Since == 0 {
		t.Fatalf("%s: pending is %+v", what, d.Pending)
	}
}

func TestLateAnswerKeepsLastGoodDecision(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b, l := newLateFixture(p)
	b.policy.OnFailure = Default // waiting is not a failure
	b.expectPending(t, "nothing to keep yet", FromDefault, 1, 1, 1)
	d, wake := b.decide()
	if !errors.Is(d.Err, ErrPending) || !wake.IsZero() || p.calls != 0 {
		t.Fatalf("%v, wake %v, %d calls", d.Err, wake, p.calls)
	}
	l.begin()
	b.expectPending(t, "running", FromDefault, 1, 1, 1)
	l.end(b.evaluator)
	if d := b.expect(t, "answered", FromChain, 7, 1, 1); d.Pending != nil {
		t.Fatalf("pending %+v", d.Pending)
	}
	b.set(2, 0)
	b.expectPending(t, "a change", FromLastGood, 7, 1)
	l.begin()
	l.end(b.evaluator)
	b.expect(t, "answered", FromChain, 7, 1)
	if p.calls != 2 || l.accepted != 2 {
		t.Fatalf("%d calls, %d accepted", p.calls, l.accepted)
	}
}

func TestNewInputSupersedesCallThatHasNotBegun(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b, l := newLateFixture(p)
	for n := range 10 {
		b.set(1+n, 0)
		b.decide()
	}
	if l.accepted != 1 {
		t.Fatalf("%d calls queued", l.accepted)
	}
	l.begin()
	l.end(b.evaluator)
	b.expect(t, "answered", FromChain, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	if p.calls != 1 {
		t.Fatalf("%d calls", p.calls)
	}
	b.set(2, 0)
	b.decide()
	b.set(10, 0)
	if d := b.expect(t, "as before", FromChain, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1); d.Pending != nil {
		t.Fatal("it waits although the last answer is for this input")
	}
	if len(l.queued) != 0 {
		t.Fatal("a call is queued that nothing waits for")
	}
}

// TestAnswerOfObsoleteCallIsOfNoUse: it had begun when the input became again what the last answer was for.
func TestAnswerOfObsoleteCallIsOfNoUse(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b, l := newLateFixture(p)
	b.decide()
	l.begin()
	l.end(b.evaluator)
	b.expect(t, "answered", FromChain, 7, 1, 1)
	p.decide = favorFirst(9)
	b.set(2, 0)
	b.decide()
	l.begin()
	b.set(3, 0)
	b.expect(t, "as before", FromChain, 7, 1, 1)
	l.end(b.evaluator)
	b.expect(t, "the obsolete answer", FromChain, 7, 1, 1)
	if n := len(l.queued); n != 0 {
		t.Fatalf("%d calls queued", n)
	}
}

// TestAnswersReachPoolThatChangesFaster: every answer is for endpoints that have changed meanwhile, in a chain of two plugins.
func TestAnswersReachPoolThatChangesFaster(t *testing.T) {
	answer := uint32(0)
	first := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		answer++
		return favorFirst(answer)(req, resp)
	}}
	second := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		for i := range req.Endpoints {
			resp.Results[i].Value = req.Endpoints[i].Share / 10
		}
		return nil
	}}
	b, l := newLateFixture(first, second)
	for n := range 50 {
		b.set(3+n, 0)
		b.decide()
		if n%3 == 2 {
			l.begin()
			b.set(3+n, 1)
			b.decide()
			l.end(b.evaluator)
		}
	}
	if first.calls < 7 || second.calls < 7 {
		t.Fatalf("%d and %d calls", first.calls, second.calls)
	}
	d, _ := b.decide()
	if d.Origin != FromLastGood || uint32(d.Weights[0]) < answer-1 {
		t.Fatalf("weights %v from %v after answer %d", d.Weights, d.Origin, answer)
	}
}

// TestFailingPoolFailsWhileItWaits: with failurePolicy Default, weights must not change back and forth with each call.
func TestFailingPoolFailsWhileItWaits(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b, l := newLateFixture(p)
	b.policy.OnFailure = Default
	answered := func() {
		l.begin()
		l.end(b.evaluator)
	}
	b.decide()
	answered()
	b.expect(t, "good", FromChain, 7, 1, 1)
	p.decide = failDecide
	b.set(2, 0)
	b.expectPending(t, "not known to fail", FromLastGood, 7, 1)
	answered()
	b.expect(t, "failed", FromDefault, 1, 1)
	b.set(3, 0)
	b.expectPending(t, "waits, and has failed", FromDefault, 1, 1, 1)
	if d, _ := b.decide(); d.Err == nil || errors.Is(d.Err, ErrPending) || len(d.Steps) != 1 {
		t.Fatalf("%v, %+v", d.Err, d.Steps)
	}
	p.decide = favorFirst(9)
	answered()
	b.expect(t, "good again", FromChain, 9, 1, 1)
}

// TestCallThatIsNotKeptIsAskedForAgain: only the first of a chain; the others would lose the answers before them.
func TestCallThatIsNotKeptIsAskedForAgain(t *testing.T) {
	first, second := &fakePlugin{decide: favorFirst(7)}, &fakePlugin{decide: favorFirst(8)}
	b, l := newLateFixture(first, second)
	l.full = true
	b.expectPending(t, "full", FromDefault, 1, 1, 1)
	b.expectPending(t, "still full", FromDefault, 1, 1, 1)
	if len(l.places) != 1 || l.accepted != 0 {
		t.Fatalf("%d places, %d accepted", len(l.places), l.accepted)
	}
	l.full = false
	b.decide()
	l.begin()
	l.end(b.evaluator)
	l.full = true
	b.set(2, 0) // the chain for three endpoints is not lost
	b.decide()
	l.begin()
	l.end(b.evaluator)
	b.expectPending(t, "the answer for three endpoints", FromLastGood, 8, 1)
	if first.calls != 1 || second.calls != 1 {
		t.Fatalf("%d and %d calls", first.calls, second.calls)
	}
}

// TestNobodyWaitsForWhatIsNotAskedAnyMore: a call that has not begun is withdrawn, whatever the reason why its pool does not ask.
func TestNobodyWaitsForWhatIsNotAskedAnyMore(t *testing.T) {
	for what, stop := range map[string]func(*fixture){
		"deleted":      func(b *fixture) { b.evaluator.Delete(b.in.Port.Name) },
		"no endpoints": func(b *fixture) { b.set(0, 0) },
		"no policy":    func(b *fixture) { b.policy = nil },
		"other plugin": func(b *fixture) {
			b.plugins["other"] = &fakePlugin{decide: favorFirst(1)}
			b.policy = &Policy{Name: "p", Steps: []Step{{Plugin: "other"}}}
		},
		"no plugin": func(b *fixture) { b.policy = &Policy{Name: "p"} },
	} {
		for _, full := range []bool{false, true} {
			b, l := newLateFixture(&fakePlugin{decide: favorFirst(7)})
			l.full = full
			b.decide()
			stop(b)
			if what != "deleted" {
				b.decide()
			}
			l.take(b.evaluator.Calls())
			for _, c := range slices.Concat(l.queued, l.places) {
				if c.Name == "plugin0" {
					t.Errorf("%s, full %t: a call waits that nobody waits for", what, full)
				}
			}
		}
	}
}

// TestCallOfReplacedRevisionIsRepeated: an error that wraps ErrPending is not a failure.
func TestCallOfReplacedRevisionIsRepeated(t *testing.T) {
	p := &fakePlugin{decide: func(*abi.Request, *abi.Response) error { return fmt.Errorf("%w: replaced", ErrPending) }}
	b, l := newLateFixture(p)
	b.decide()
	l.begin()
	l.end(b.evaluator)
	p.decide = favorFirst(7)
	b.expectPending(t, "once more", FromDefault, 1, 1, 1)
	l.begin()
	l.end(b.evaluator)
	b.expect(t, "answered", FromChain, 7, 1, 1)
}

// hashPlugin answers with weights that are a function of the endpoints, and keeps endpoints draining.
func hashPlugin() *fakePlugin {
	return &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		for i := range req.Endpoints {
			h := fnv.New32a()
			fmt.Fprint(h, req.Endpoints[i].Addr, req.Endpoints[i].Conditions, req.Endpoints[i].Share, len(req.Endpoints))
			resp.Results[i].Value = 1 + h.Sum32()%100
			resp.Results[i].Flags = h.Sum32() >> 8 % 2 * abi.FlagKeepDraining
		}
		resp.RequeueAfter = time.Minute
		return nil
	}}
}

// TestLateAnswersEqualImmediateAnswers applies random changes while calls are refused, superseded, delayed and fail, and compares
// the decision after the last answer with that of an Evaluator whose calls are answered at once.
func TestLateAnswersEqualImmediateAnswers(t *testing.T) {
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 7))
		late, l := newLateFixture(hashPlugin(), hashPlugin())
		sync := newFixture(hashPlugin(), hashPlugin())
		onFailure, shadowed, observes := OnFailure(r.IntN(2)), r.IntN(2) == 0, r.IntN(5) == 0
		for _, b := range []*fixture{late, sync} {
			b.policy.OnFailure = onFailure
			if shadowed || observes {
				b.shadow(hashPlugin(), hashPlugin())
			}
			if observes {
				b.policy.Steps = nil
			}
		}
		pool := uint8(r.IntN(2))
		late.in.Pool = pool
		check := func(d Decision) {
			t.Helper()
			anyDefault, some := false, false
			for i, w := range d.Weights {
				e := &late.in.Port.Endpoints[i]
				if w > 0 && (!e.Eligible() || late.in.Pool == abi.PoolLocal && !e.Local) {
					t.Fatalf("seed %d: weight %d for %+v (%v)", seed, w, e, d.Origin)
				}
				anyDefault, some = anyDefault || chosen(&late.in, i), some || w > 0
			}
			if anyDefault && !some {
				t.Fatalf("seed %d: nothing left (%v, %v)", seed, d.Origin, d.Err)
			}
		}
		change := func() {
			late.set(r.IntN(6), 0)
			late.in.Pool = pool
			for i := range late.in.Port.Endpoints {
				e := &late.in.Port.Endpoints[i]
				e.Ready, e.Serving, e.Terminating, e.Local = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(3) == 0, r.IntN(2) == 0
				e.InCluster, e.InLocal = e.Eligible() && r.IntN(2) == 0, e.Eligible() && e.Local && r.IntN(2) == 0
			}
			late.now = late.now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
		}
		decide := func() Decision {
			sync.in, sync.now = late.in, late.now
			sync.decide()
			d, _ := late.decide()
			check(d)
			return d
		}
		for range 25 {
			l.full, l.immediate = r.IntN(4) == 0, r.IntN(6) == 0 && len(l.queued)+len(l.running) == 0
			switch n := r.IntN(6); {
			case n < 3:
				change()
			case n == 3 && len(l.queued) > 0:
				l.begin()
			case n > 3 && len(l.running) > 0:
				c := l.running[0]
				l.running = l.running[1:]
				if c.Do(); r.IntN(4) == 0 {
					c.Err = errors.New("at will")
				}
				late.evaluator.Answer(c)
			}
			decide()
		}
		l.full, l.immediate = false, false
		late.now = late.now.Add(2 * maxBackoff)
		for range 20 {
			decide()
			for len(l.queued) > 0 {
				l.begin()
			}
			for len(l.running) > 0 {
				l.end(late.evaluator)
			}
		}
		got, _ := late.decide()
		want, _ := sync.decide()
		if got.Pending != nil || got.Origin != want.Origin || !slices.Equal(got.Weights, want.Weights) || !equalShadows(got.Shadow, want.Shadow) ||
			!slices.Equal(got.KeepDraining, want.KeepDraining) || len(got.Steps) != len(want.Steps) {
			t.Fatalf("seed %d: late %+v, %v\nimmediate %+v, %v", seed, got, got.Err, want, want.Err)
		}
		if late.evaluator.Awaited() != 0 {
			t.Fatalf("seed %d: %d pools wait", seed, late.evaluator.Awaited())
		}
	}
}
