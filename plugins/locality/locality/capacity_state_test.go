package locality

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

type session struct {
	*sdktest.Session
	t testing.TB
}

func newSession(t testing.TB, settings string) *session {
	t.Helper()
	return &session{Session: sdktest.NewSession(t, New, settings), t: t}
}

// decide calls the plugin twice: the second call, with the state of the first, must change nothing.
func (a *session) decide(req *abi.Request) *abi.Response {
	a.t.Helper()
	first, again := a.Decide(req), a.Decide(req)
	if fmt.Sprint(*first) != fmt.Sprint(*again) {
		a.t.Fatalf("two calls, two answers:\n%+v\n%+v", first, again)
	}
	return again
}

// targets returns what zones a and b get of the connections of a node in zone a.
func targets(resp *abi.Response) (keeps, gets string) {
	for _, r := range resp.Results {
		if at := strings.Index(r.Reason, "zone b gets "); at >= 0 {
			gets = r.Reason[len("zone b gets "):strings.Index(r.Reason, " %")]
		}
		if at := strings.Index(r.Reason, "zone a keeps "); at >= 0 {
			keeps = r.Reason[len("zone a keeps "):strings.Index(r.Reason, " %")]
		}
	}
	return keeps, gets
}

// A change within the hysteresis waits: in a rollout, endpoints come and go. Afterwards nothing of it is left.
func TestSmallChangesWaitAndThenTakePlace(t *testing.T) {
	a := newSession(t, `{"hold":"30s"}`)
	for i, step := range []struct {
		after  time.Duration
		counts []int
		keeps  string
		wait   time.Duration
	}{
		{0, []int{6, 8, 8}, "82", 0},
		{time.Second, []int{6, 9, 8}, "82", 30 * time.Second},
		{time.Second, []int{6, 8, 7}, "82", 29 * time.Second},
		{time.Second, []int{6, 8, 8}, "82", 0}, // as before
		{time.Second, []int{6, 9, 8}, "82", 30 * time.Second},
		{29 * time.Second, []int{6, 9, 8}, "82", time.Second},
		{time.Second, []int{6, 9, 8}, "78", 0},
		{time.Second, []int{2, 8, 8}, "33", 0},               // at once: it is large
		{time.Second, []int{2, 8, 0}, "60", 0},               // at once: a zone has nothing left
		{time.Second, []int{2, 8, 8}, "33", 0},               // at once: another zone
		{-time.Hour, []int{2, 9, 8}, "33", 30 * time.Second}, // the clock went back
	} {
		a.Now += step.after.Milliseconds()
		resp := a.decide(sdktest.NewRequest("a", even, perZone(step.counts...)...))
		if keeps, _ := targets(resp); keeps != step.keeps || resp.RequeueAfter != step.wait {
			t.Errorf("step %d: zone a keeps %s %%, requeue after %v, want %s %%, %v", i, keeps, resp.RequeueAfter, step.keeps, step.wait)
		}
	}
}

func TestStateOfAnotherZoneOrVersionIsIgnored(t *testing.T) {
	req := sdktest.NewRequest("b", even, perZone(6, 8, 8)...)
	want := sdktest.Answers(sdktest.MustRun(t, New(), "", req))
	a := newSession(t, "")
	a.decide(sdktest.NewRequest("a", even, perZone(6, 8, 8)...))
	for _, state := range [][]byte{a.State, {2}, {1, 9}, []byte(strings.Repeat("\xff", 1024)), append(slices.Clone(a.State), 0)} {
		req.State = state
		if got := sdktest.Answers(sdktest.MustRun(t, New(), "", req)); !slices.Equal(got, want) {
			t.Errorf("state %x: shares %v, want %v", state, got, want)
		}
	}
}

func TestModeChangesOnlyAfterHoldSeconds(t *testing.T) {
	a := newSession(t, `{"hold":"30s"}`)
	acts := func(counts ...int) (bool, time.Duration) {
		resp := a.decide(sdktest.NewRequest("a", even, perZone(counts...)...))
		return !strings.Contains(resp.Results[0].Reason, "default kept"), resp.RequeueAfter
	}
	for i, s := range []struct {
		after time.Duration
		zoneB int
		acts  bool
		asks  time.Duration
	}{
		{0, 4, true, 0},
		{5 * time.Second, 1, true, 30 * time.Second}, // too few: wait
		{10 * time.Second, 1, true, 20 * time.Second},
		{10 * time.Second, 4, true, 0}, // over before hold
		{5 * time.Second, 1, true, 30 * time.Second},
		{30 * time.Second, 1, false, 0},               // for long enough
		{time.Second, 4, false, 30 * time.Second},     // enough again: wait too
		{29 * time.Second, 4, false, 1 * time.Second}, //
		{time.Second, 4, true, 0},
		{time.Second, 0, true, 0}, // a zone without endpoints does not have too few
	} {
		a.Now += s.after.Milliseconds()
		got, wait := acts(4, s.zoneB, 4)
		if got != s.acts || wait != s.asks {
			t.Errorf("step %d: acts %v, requeue after %v, want %v, %v", i, got, wait, s.acts, s.asks)
		}
	}
}

func TestDecisionDoesNotDependOnHowOftenItIsMade(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	for range 200 {
		often, seldom := newSession(t, `{"hold":"5s"}`), newSession(t, `{"hold":"5s"}`)
		counts := []int{3, 3, 3}
		var wake int64
		var changed bool
		var last []float64
		for step := range 60 {
			if rnd.IntN(8) == 0 || step == 0 {
				counts[rnd.IntN(3)] = rnd.IntN(5)
				counts[0] = max(counts[0], 1)
				changed = true
			}
			often.Now += 1000
			want := sdktest.Answers(often.decide(sdktest.NewRequest("a", even, perZone(counts...)...)))
			// Call the other one as a host does: on a change, and after RequeueAfter.
			if seldom.Now = often.Now; changed || wake != 0 && wake <= seldom.Now {
				resp := seldom.decide(sdktest.NewRequest("a", even, perZone(counts...)...))
				last, changed, wake = sdktest.Answers(resp), false, 0
				if resp.RequeueAfter > 0 {
					wake = seldom.Now + resp.RequeueAfter.Milliseconds()
				}
			}
			if !slices.Equal(last, want) {
				t.Fatalf("step %d, endpoints %v: called every second %v, called when needed %v", step, counts, want, last)
			}
		}
	}
}
