package policy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestPluginIsCalledOnlyOnInputChange(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b := newFixture(p)
	b.expect(t, "first", FromChain, 7, 1, 1)
	b.now = b.now.Add(time.Hour)
	b.expect(t, "an hour later", FromChain, 7, 1, 1)
	if p.calls != 1 {
		t.Fatalf("%d calls without a change", p.calls)
	}
	b.set(2, 1)
	b.expect(t, "one terminates", FromChain, 7, 1, 0)
	p.revision = "new"
	b.expect(t, "a new revision", FromChain, 7, 1, 0)
	if p.calls != 3 {
		t.Fatalf("%d calls, want 3", p.calls)
	}
}

func TestReloadOfUnchangedPolicyCallsNoPlugin(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b := newFixture(p)
	b.expect(t, "first", FromChain, 7, 1, 1)
	again := *b.policy
	b.policy = &again
	b.expect(t, "read again", FromChain, 7, 1, 1)
	if p.calls != 1 {
		t.Fatalf("%d calls", p.calls)
	}
	b.policy = &Policy{Name: "p", Steps: []Step{{Plugin: "plugin0", Settings: "{}"}}}
	b.expect(t, "changed", FromChain, 7, 1, 1)
	if p.calls != 2 {
		t.Fatalf("%d calls after a change of the settings", p.calls)
	}
}

func TestRequeueCallsPluginAgain(t *testing.T) {
	p := &fakePlugin{}
	p.decide = func(req *abi.Request, resp *abi.Response) error {
		resp.RequeueAfter = 5 * time.Second
		return favorFirst(uint32(p.calls))(req, resp)
	}
	b := newFixture(p)
	_, wake := b.decide()
	if want := time.Unix(1005, 0); !wake.Equal(want) {
		t.Fatalf("wake at %v, want %v", wake, want)
	}
	b.now = wake.Add(-time.Millisecond)
	b.expect(t, "just before", FromChain, 1, 1, 1)
	b.now = wake
	b.expect(t, "at the time", FromChain, 2, 1, 1)
}

func TestPluginIsNotCalledWhenPreviousAnswerIsUnchanged(t *testing.T) {
	first := &fakePlugin{}
	first.decide = func(req *abi.Request, resp *abi.Response) error {
		resp.RequeueAfter = time.Second
		return favorFirst(5)(req, resp)
	}
	second := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		for i := range req.Endpoints {
			resp.Results[i].Value = req.Endpoints[i].Share
		}
		resp.Results[0].Value *= 2
		return nil
	}}
	b := newFixture(first, second)
	b.expect(t, "the second sees the first's weights", FromChain, 10, 1, 1)
	b.now = b.now.Add(2 * time.Second)
	b.expect(t, "later", FromChain, 10, 1, 1)
	if first.calls != 2 || second.calls != 1 {
		t.Fatalf("calls %d and %d, want 2 and 1", first.calls, second.calls)
	}
}

func TestFailingChainKeepsLastGoodDecision(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b := newFixture(p)
	b.expect(t, "good", FromChain, 7, 1, 1)
	p.decide = failDecide
	b.set(4, 0)
	d := b.expect(t, "a new endpoint gets the mean", FromLastGood, 7, 1, 1, 3)
	if d.Err == nil {
		t.Fatal("no error is reported")
	}
	b.set(2, 1)
	b.expect(t, "one that has begun to terminate gets nothing", FromLastGood, 7, 1, 0)
	p.decide = favorFirst(9)
	b.now = b.now.Add(maxBackoff)
	b.expect(t, "it works again", FromChain, 9, 1, 0)
}

func TestFailingChainWithoutLastGoodDecisionUsesDefault(t *testing.T) {
	b := newFixture(&fakePlugin{decide: failDecide})
	b.expect(t, "no last good", FromDefault, 1, 1, 1)
}

func TestFailurePolicyDefaultIgnoresLastGoodDecision(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b := newFixture(p)
	b.policy.OnFailure = Default
	b.expect(t, "good", FromChain, 7, 1, 1)
	p.decide = failDecide
	b.set(2, 0)
	b.expect(t, "failing", FromDefault, 1, 1)
}

func TestMissingPluginKeepsLastGoodDecisionUntilLoaded(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b := newFixture(p)
	b.expect(t, "good", FromChain, 7, 1, 1)
	delete(b.plugins, "plugin0")
	b.expect(t, "gone", FromLastGood, 7, 1, 1)
	b.plugins["plugin0"] = p
	b.expect(t, "back", FromChain, 7, 1, 1)
}

func TestFailingPluginIsRetriedWithBackoff(t *testing.T) {
	p := &fakePlugin{decide: failDecide}
	b := newFixture(p)
	start := b.now
	for b.now.Sub(start) < time.Hour {
		_, wake := b.decide()
		if !wake.After(b.now) {
			t.Fatalf("wake %v is not after %v", wake, b.now)
		}
		b.now = wake
	}
	if p.calls < 60 || p.calls > 70 {
		t.Fatalf("%d calls in an hour", p.calls)
	}
}

// later is an error of a plugin that says when to ask again.
type later time.Duration

func (l later) Error() string        { return "later" }
func (l later) Retry() time.Duration { return time.Duration(l) }

// TestPluginIsAskedAgainWhenItSays, however often it has failed before: a Service that waits for others waits no longer than
// they.
func TestPluginIsAskedAgainWhenItSays(t *testing.T) {
	var answered []bool
	waits, p := []time.Duration{time.Second, 5 * time.Minute, time.Second, 7 * time.Second, 0}, &fakePlugin{}
	p.decide = func(req *abi.Request, resp *abi.Response) error {
		answered = append(answered, req.Settings.Answered)
		if wait := waits[p.calls-1]; wait > 0 {
			return fmt.Errorf("plugin: %w", later(wait))
		}
		resp.RequeueAfter = time.Second
		return favorFirst(5)(req, resp)
	}
	b := newFixture(p)
	for i, wait := range waits {
		d, wake := b.decide()
		if got := wake.Sub(b.now); got != max(wait, time.Second) || (d.Err == nil) != (wait == 0) {
			t.Errorf("call %d: asked again after %s, want %s: %v", i, got, wait, d.Err)
		}
		b.now = wake
	}
	waits = append(waits, time.Second)
	b.decide()
	if want := []bool{false, false, false, false, false, true}; !slices.Equal(answered, want) {
		t.Errorf("answered before: %v, want %v", answered, want)
	}
}

func TestAnswerWithoutWeightIsRejected(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(0)}
	b := newFixture(p)
	if d := b.expect(t, "all zero", FromDefault, 1, 1, 1); d.Err == nil {
		t.Fatal("no error is reported")
	}
}

func TestTerminatingSinceStaysTheSame(t *testing.T) {
	var seen []int64
	p := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		seen = append(seen, req.Endpoints[len(req.Endpoints)-1].TerminatingSince)
		resp.RequeueAfter = time.Second
		return favorFirst(1)(req, resp)
	}}
	b := newFixture(p)
	b.set(2, 1)
	b.now = b.now.Add(700 * time.Millisecond)
	b.decide()
	b.now = b.now.Add(10 * time.Second)
	b.decide()
	if want := []int64{1000_000, 1000_000}; !slices.Equal(seen, want) {
		t.Fatalf("terminating since %v, want %v", seen, want)
	}
}

func TestResetTimeDoesNotSlideOnRequeue(t *testing.T) {
	p := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		last := len(req.Endpoints) - 1
		resp.Results[last].ResetAfterMS = uint32(30_000 - (req.Now - req.Endpoints[last].TerminatingSince))
		resp.RequeueAfter = time.Second
		return favorFirst(1)(req, resp)
	}}
	b := newFixture(p)
	b.set(2, 1)
	for range 20 {
		d, _ := b.decide()
		if got := d.ResetAt[2]; got != 1030_000 {
			t.Fatalf("reset at %d", got)
		}
		b.now = b.now.Add(1100 * time.Millisecond)
	}
}

// TestDecisionNeverWidensEligibility uses a plugin with random answers and failures, and checks that no ineligible
// endpoint gets weight.
func TestDecisionNeverWidensEligibility(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		wild := func(req *abi.Request, resp *abi.Response) error {
			for i := range resp.Results {
				resp.Results[i].Value = r.Uint32() * r.Uint32N(2)
			}
			if r.IntN(3) == 0 {
				return errors.New("at will")
			}
			if r.IntN(9) == 0 {
				resp.Results = resp.Results[:0]
			}
			resp.RequeueAfter = time.Duration(r.IntN(3)) * time.Second
			return nil
		}
		b := newFixture(&fakePlugin{decide: wild}, &fakePlugin{decide: wild})
		b.policy.OnFailure = OnFailure(r.IntN(2))
		if r.IntN(5) == 0 {
			b.policy.Steps, b.policy.Shadow = nil, b.policy.Steps
		}
		for range 12 {
			b.set(r.IntN(5), 0)
			b.in.Pool = uint8(r.IntN(2))
			anyDefault := false
			for i := range b.in.Port.Endpoints {
				e := &b.in.Port.Endpoints[i]
				e.Ready, e.Serving, e.Terminating, e.Local = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
				e.InCluster, e.InLocal = e.Eligible() && r.IntN(2) == 0, e.Eligible() && e.Local && r.IntN(2) == 0
				anyDefault = anyDefault || chosen(&b.in, i)
			}
			b.now = b.now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			d, wake := b.decide()
			some := false
			for i, w := range d.Weights {
				e := &b.in.Port.Endpoints[i]
				if w > 0 && (!e.Eligible() || b.in.Pool == abi.PoolLocal && !e.Local) {
					t.Fatalf("seed %d: weight %d for %+v (%v)", seed, w, e, d.Origin)
				}
				some = some || w > 0
			}
			if anyDefault && !some {
				t.Fatalf("seed %d: nothing left (%v, %v)", seed, d.Origin, d.Err)
			}
			if !wake.IsZero() && !wake.After(b.now) {
				t.Fatalf("seed %d: wake %v at %v", seed, wake, b.now)
			}
		}
	}
}

func TestPolicyPrecedenceIsAnnotationBindingDefault(t *testing.T) {
	a, b, c := &Policy{Name: "a"}, &Policy{Name: "b"}, &Policy{Name: "c"}
	set := &Set{
		Policies: map[string]*Policy{"a": a, "b": b, "c": c},
		Bindings: []Binding{
			{Namespaces: []string{"other"}, Policy: "a"},
			{Selector: Selector{{Key: "app", Op: In, Values: []string{"web"}}, {Key: "old", Op: DoesNotExist}}, Policy: "b"},
		},
		Allow:   []Allow{{Namespaces: []string{"shop", "other"}, Policies: []string{"a"}}, {Namespaces: []string{"shop"}, Policies: []string{"c"}}},
		Default: "c",
	}
	shop := func(annotation string) model.Service {
		return model.Service{Name: model.Name{Namespace: "shop", Name: "web"}, Policy: annotation, Labels: map[string]string{"app": "web"}}
	}
	for _, tt := range []struct {
		svc  model.Service
		last string
		want *Policy
		err  string
	}{
		{svc: shop("a"), want: a},
		{svc: shop("a"), last: "c", want: a},
		{svc: model.Service{Labels: map[string]string{"app": "web"}}, want: b},
		{svc: model.Service{Labels: map[string]string{"app": "web", "old": ""}}, want: c},
		{svc: model.Service{Name: model.Name{Namespace: "other"}}, want: a},
		{svc: shop("b"), want: b, err: `Services of namespace shop may not choose policy "b" (allowed: a, c); what applies without the annotation is in force`},
		{svc: shop("b"), last: "c", want: c, err: `Services of namespace shop may not choose policy "b" (allowed: a, c); policy c, which it has chosen before, stays in force`},
		{svc: shop("A"), last: "b", want: b, err: `no policy "A" (did you mean "a"?) (allowed: a, c); what applies without the annotation is in force`},
		{svc: shop("x"), last: "gone", want: b, err: `no policy "x" (allowed: a, c); what applies without the annotation is in force`},
		{svc: model.Service{Name: model.Name{Namespace: "none"}, Policy: "bb"}, last: "a", want: c, err: `no policy "bb" (allowed: none); what applies without the annotation is in force`},
	} {
		got, err := set.For(&tt.svc, "", tt.last)
		text := ""
		if err != nil {
			text = strings.TrimPrefix(err.Error(), "Service "+tt.svc.Name.String()+": metadata.annotations[sluice.dev/policy]: ")
		}
		if got != tt.want || text != tt.err {
			t.Errorf("%+v after %q: got %v, %s\nwant %v, %s", tt.svc, tt.last, got, text, tt.want, tt.err)
		}
	}
}

func TestRepeatedResetRequestsResetOnce(t *testing.T) {
	p := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		for i := range resp.Results {
			resp.Results[i].ResetAfterMS = 1
		}
		resp.RequeueAfter = time.Millisecond
		return favorFirst(1)(req, resp)
	}}
	b := newFixture(p)
	seen := map[int64]bool{}
	for range 20 {
		d, wake := b.decide()
		seen[d.ResetAt[0]] = true
		if !wake.Equal(time.Unix(b.now.Unix()+1, 0)) {
			t.Fatalf("wake %v at %v: once a second is enough", wake, b.now)
		}
		b.now = wake
	}
	if len(seen) != 1 {
		t.Fatalf("%d resets of one endpoint", len(seen))
	}
	b.set(2, 1) // the third begins to leave
	d, _ := b.decide()
	if seen[d.ResetAt[2]] || !seen[d.ResetAt[0]] {
		t.Fatalf("after a change: %v, before %v", d.ResetAt, seen)
	}
}
