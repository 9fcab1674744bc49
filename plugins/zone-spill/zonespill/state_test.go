package zonespill

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

func TestRolloutChangesNoOtherWeight(t *testing.T) {
	a := newSession(t, "")
	weights := func(counts ...int) []int {
		return sdktest.Weights(a.decide(sdktest.NewRequest("a", even, perZone(counts...)...)))
	}
	start := weights(6, 8, 8)
	if start[0] == start[7] || start[7] == 0 {
		t.Fatalf("weights %v: zone a should keep most of its connections, not all", start)
	}
	for _, counts := range [][]int{{6, 9, 8}, {6, 8, 9}, {6, 8, 7}, {6, 8, 8}} {
		got := weights(counts...)
		if got[0] != start[0] || got[6] != start[6] || got[len(got)-1] != start[len(start)-1] {
			t.Errorf("%v endpoints: weights %v, were %v", counts, got, start)
		}
	}
	if got := weights(2, 8, 8); got[0] == start[0] && got[2] == start[6] {
		t.Errorf("most of zone a gone: weights %v as before", got)
	}
}

func TestStateOfAnotherZoneOrVersionIsIgnored(t *testing.T) {
	req := sdktest.NewRequest("b", even, perZone(6, 8, 8)...)
	want := sdktest.Weights(sdktest.MustRun(t, New(), "", req))
	a := newSession(t, "")
	a.decide(sdktest.NewRequest("a", even, perZone(6, 8, 8)...))
	for _, state := range [][]byte{a.State, {2}, {1, 9}, []byte(strings.Repeat("\xff", 1024)), append(slices.Clone(a.State), 0)} {
		req.State = state
		if got := sdktest.Weights(sdktest.MustRun(t, New(), "", req)); !slices.Equal(got, want) {
			t.Errorf("state %x: weights %v, want %v", state, got, want)
		}
	}
}

func TestModeChangesOnlyAfterHoldSeconds(t *testing.T) {
	a := newSession(t, `{"holdSeconds":30}`)
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
		{10 * time.Second, 4, true, 0}, // over before holdSeconds
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
		often, seldom := newSession(t, `{"holdSeconds":5}`), newSession(t, `{"holdSeconds":5}`)
		counts := []int{3, 3, 3}
		var wake int64
		var changed bool
		var last []int
		for step := range 60 {
			if rnd.IntN(8) == 0 || step == 0 {
				counts[rnd.IntN(3)] = rnd.IntN(5)
				counts[0] = max(counts[0], 1)
				changed = true
			}
			often.Now += 1000
			want := sdktest.Weights(often.decide(sdktest.NewRequest("a", even, perZone(counts...)...)))
			// Call the other one as a host does: on a change, and after RequeueAfter.
			if seldom.Now = often.Now; changed || wake != 0 && wake <= seldom.Now {
				resp := seldom.decide(sdktest.NewRequest("a", even, perZone(counts...)...))
				last, changed, wake = sdktest.Weights(resp), false, 0
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
