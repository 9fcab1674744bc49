package policy

import (
	"bytes"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// testEpoch is that of a clock that a restart does not change.
var testEpoch = Epoch{Boot: "boot"}

// restart replaces the Evaluator by a new one that is restored from the old one's checkpoint.
func (b *fixture) restart(t *testing.T) {
	t.Helper()
	saved, err := b.evaluator.Save(testEpoch)
	if err != nil {
		t.Fatal(err)
	}
	fresh := NewEvaluator(b.evaluator.plugins)
	epoch, sameBoot, err := fresh.Restore(saved, testEpoch)
	if err != nil || !sameBoot || epoch != testEpoch {
		t.Fatalf("restored with %+v, same boot %t: %v", epoch, sameBoot, err)
	}
	again, err := fresh.Save(testEpoch)
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
		return favorFirst(1)(req, resp)
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
		return favorFirst(7)(req, resp)
	}}
	b := newFixture(p)
	b.expect(t, "good", FromChain, 7, 1, 1)
	b.restart(t)
	b.expect(t, "second call", FromChain, 7, 1, 1)
	if state != "mine" {
		t.Fatalf("state %q", state)
	}
	b.restart(t)
	p.decide = failDecide
	b.expect(t, "failing", FromLastGood, 7, 1, 1)
}

func TestLastGoodDecisionIsNotInheritedByAnotherPolicy(t *testing.T) {
	p := &fakePlugin{decide: favorFirst(7)}
	b := newFixture(p)
	b.expect(t, "good", FromChain, 7, 1, 1)
	b.restart(t)
	b.policy.Name = "other"
	p.decide = failDecide
	b.expect(t, "failing", FromDefault, 1, 1, 1)
}

func TestPruneDeletesStateOfDeletedServices(t *testing.T) {
	b := newFixture(&fakePlugin{decide: favorFirst(7)})
	b.decide()
	b.evaluator.Prune(func(model.Name) bool { return false })
	if len(b.evaluator.pools) != 0 {
		t.Fatal("still remembered")
	}
}

// drainAfter resets the connections to the third endpoint ms after it started to terminate.
func drainAfter(ms int64, since *int64) func(*abi.Request, *abi.Response) error {
	return func(req *abi.Request, resp *abi.Response) error {
		*since = req.Endpoints[2].TerminatingSince
		resp.Results[2].ResetAfterMS = uint32(max(0, ms-(req.Now-*since)))
		return favorFirst(1)(req, resp)
	}
}

func TestElapsedTimeIsExactAfterARestart(t *testing.T) {
	const limit = 600_000
	for name, set := range map[string]time.Duration{ // by how much the wall clock was set while no process ran
		"not set": 0, "noise": 3 * time.Millisecond, "slightly": -400 * time.Millisecond, "seconds": 7300 * time.Millisecond,
		"forward": time.Hour, "back": -time.Hour, "far forward": 50 * 365 * 24 * time.Hour, "to 1970": -1_749_999_000 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			var since int64
			b := newFixture(&fakePlugin{decide: drainAfter(limit, &since)})
			b.now = time.UnixMilli(1_750_000_000_250)
			b.set(2, 1)
			b.decide()
			saved, err := b.evaluator.Save(testEpoch)
			if err != nil {
				t.Fatal(err)
			}
			b.evaluator = NewEvaluator(b.evaluator.plugins)
			epoch, sameBoot, err := b.evaluator.Restore(saved, Epoch{testEpoch.Boot, testEpoch.At + set.Milliseconds()})
			if err != nil || !sameBoot {
				t.Fatalf("same boot %t: %v", sameBoot, err)
			}
			moved := time.Duration(epoch.At-testEpoch.At) * time.Millisecond
			if off := set - moved; off.Abs() > time.Second/2 || moved%time.Second != 0 {
				t.Fatalf("the wall clock was set by %s, the times moved by %s", set, moved)
			}
			b.now = b.now.Add(90*time.Second + moved)
			d, _ := b.decide()
			if elapsed := wholeSecond(b.now) - since; elapsed != 90_000 {
				t.Errorf("the plugin sees a drain of %d ms, not 90 s", elapsed)
			}
			if left := d.ResetAt[2] - wholeSecond(b.now); left != limit-90_000 {
				t.Errorf("the reset comes in %d ms", left)
			}
		})
	}
}

// TestTimesAreDroppedAfterAReboot: weights are not, and no reset comes early whatever the wall clock says.
func TestTimesAreDroppedAfterAReboot(t *testing.T) {
	for name, boots := range map[string][2]string{"another boot": {"1", "2"}, "unknown": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			var since int64
			p := &fakePlugin{decide: drainAfter(60_000, &since)}
			b := newFixture(p)
			b.set(2, 1)
			b.decide()
			saved, err := b.evaluator.Save(Epoch{Boot: boots[0]})
			if err != nil {
				t.Fatal(err)
			}
			b.evaluator = NewEvaluator(b.evaluator.plugins)
			fresh := Epoch{Boot: boots[1], At: time.Hour.Milliseconds()}
			epoch, sameBoot, err := b.evaluator.Restore(saved, fresh)
			if err != nil || sameBoot || epoch != fresh {
				t.Fatalf("restored with %+v, same boot %t: %v", epoch, sameBoot, err)
			}
			b.now = b.now.Add(time.Hour)
			start := wholeSecond(b.now)
			p.decide = failDecide
			if d := b.expect(t, "the plugin fails", FromLastGood, 1, 1, 0); d.ResetAt != nil {
				t.Errorf("resets at %d", d.ResetAt)
			}
			p.decide = drainAfter(60_000, &since)
			b.now = b.now.Add(2 * time.Second)
			if d, _ := b.decide(); since != start || d.ResetAt[2] != start+60_000 {
				t.Errorf("terminating since %d, reset at %d, first seen at %d", since, d.ResetAt[2], start)
			}
		})
	}
}

func FuzzRestore(f *testing.F) {
	b := newFixture(&fakePlugin{decide: favorFirst(7)})
	b.decide()
	saved, err := b.evaluator.Save(testEpoch)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved, int64(0))
	f.Add(saved, int64(3_600_000))
	f.Add([]byte(`{"version":2}`), int64(0))
	f.Fuzz(func(t *testing.T, text []byte, at int64) {
		b := newFixture(&fakePlugin{decide: favorFirst(7)})
		if _, _, err := b.evaluator.Restore(text, Epoch{testEpoch.Boot, at}); err != nil && len(b.evaluator.pools) > 0 {
			t.Fatalf("restored in part: %v", err)
		}
		b.expect(t, "whatever was restored", FromChain, 7, 1, 1)
		if _, err := b.evaluator.Save(testEpoch); err != nil {
			t.Fatal(err)
		}
	})
}
