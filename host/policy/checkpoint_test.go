package policy

import (
	"bytes"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// restart replaces the Evaluator by a new one that is restored from the old one's checkpoint.
func (b *fixture) restart(t *testing.T) {
	t.Helper()
	saved, err := b.evaluator.Save()
	if err != nil {
		t.Fatal(err)
	}
	fresh := NewEvaluator(b.evaluator.plugins)
	if err := fresh.Restore(saved); err != nil {
		t.Fatal(err)
	}
	again, err := fresh.Save()
	if err != nil || !bytes.Equal(saved, again) {
		t.Fatalf("saved again (%v):\n%s\nfirst:\n%s", err, again, saved)
	}
	b.evaluator = fresh
	copied := *b.policy // a new process has other pointers
	b.policy = &copied
}

func TestTerminatingSinceSurvivesRestart(t *testing.T) {
	var since int64
	b := newFixture(&fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		since = req.Endpoints[2].TerminatingSince
		return setWeights(1)(req, resp)
	}})
	b.set(2, 1)
	b.decide()
	b.now = b.now.Add(time.Minute)
	b.restart(t)
	b.decide()
	if since != 1000_000 {
		t.Fatalf("terminating since %d", since)
	}
}

func TestLastGoodDecisionAndPluginStateSurviveRestart(t *testing.T) {
	var state string
	p := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		state = string(req.State)
		resp.State = append(resp.State, "mine"...)
		return setWeights(7)(req, resp)
	}}
	b := newFixture(p)
	b.expect(t, "good", FromChain, 7, 7, 7)
	b.restart(t)
	b.expect(t, "second call", FromChain, 7, 7, 7)
	if state != "mine" {
		t.Fatalf("state %q", state)
	}
	b.restart(t)
	p.decide = failDecide
	b.expect(t, "failing", FromLastGood, 7, 7, 7)
}

func TestLastGoodDecisionIsNotInheritedByAnotherPolicy(t *testing.T) {
	p := &fakePlugin{decide: setWeights(7)}
	b := newFixture(p)
	b.expect(t, "good", FromChain, 7, 7, 7)
	b.restart(t)
	b.policy.Name = "other"
	p.decide = failDecide
	b.expect(t, "failing", FromDefault, 1, 1, 1)
}

func TestPruneDeletesStateOfDeletedServices(t *testing.T) {
	b := newFixture(&fakePlugin{decide: setWeights(7)})
	b.decide()
	b.evaluator.Prune(func(model.PortName) bool { return false })
	if len(b.evaluator.pools) != 0 {
		t.Fatal("still remembered")
	}
}

func FuzzRestore(f *testing.F) {
	b := newFixture(&fakePlugin{decide: setWeights(7)})
	b.decide()
	saved, err := b.evaluator.Save()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved)
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b := newFixture(&fakePlugin{decide: setWeights(7)})
		if err := b.evaluator.Restore(text); err != nil && len(b.evaluator.pools) > 0 {
			t.Fatalf("restored in part: %v", err)
		}
		b.expect(t, "whatever was restored", FromChain, 7, 7, 7)
		if _, err := b.evaluator.Save(); err != nil {
			t.Fatal(err)
		}
	})
}
