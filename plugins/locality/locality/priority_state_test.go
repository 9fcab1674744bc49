package locality

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

type prioritySession struct{ *sdktest.Session }

func newPrioritySession(t testing.TB, settings string) prioritySession {
	t.Helper()
	return prioritySession{sdktest.NewSession(t, New, settings)}
}

// decide decides with numbers of healthy and unhealthy endpoints in zones a, b and so on.
func (s prioritySession) decide(counts ...[2]int) *abi.Response {
	var eps []abi.Endpoint
	for i, c := range counts {
		eps = append(eps, inZone(string(rune('a'+i)), c[0], c[1])...)
	}
	return s.Decide(sdktest.NewRequest("a", nil, eps...))
}

func TestSpillIsImmediateAndReturnWaits(t *testing.T) {
	s := newPrioritySession(t, `{"mode":"priority","hold":"30s"}`)
	for i, step := range []struct {
		after   time.Duration
		healthy int // of 10 in this zone
		want    float64
		wait    time.Duration
	}{
		{0, 10, 100, 0},
		{time.Second, 8, 100, 0},                // overprovisioned
		{time.Second, 7, 100, 30 * time.Second}, // 98 %: within the hysteresis
		{30 * time.Second, 7, 98, 0},            // for long enough
		{time.Second, 5, 70, 0},
		{time.Second, 10, 70, 30 * time.Second},
		{10 * time.Second, 9, 70, 20 * time.Second},
		{10 * time.Second, 5, 70, 0}, // it fails again: the wait is over
		{10 * time.Second, 10, 70, 30 * time.Second},
		{10 * time.Second, 4, 56, 0}, // worse
		{time.Second, 6, 56, 30 * time.Second},
		{15 * time.Second, 10, 56, 15 * time.Second},
		{15 * time.Second, 10, 100, 0},
		{time.Second, 0, 0, 0},
		{time.Second, 1, 0, 30 * time.Second},
		{-time.Hour, 1, 0, 30 * time.Second}, // the clock went back
		{30 * time.Second, 1, 14, 0},
	} {
		s.Now += step.after.Milliseconds()
		resp := s.decide([2]int{step.healthy, 10 - step.healthy}, [2]int{4, 0})
		in, all := 0.0, 0.0
		for j, a := range resp.Results {
			ready := j < step.healthy || j >= 10
			if ready {
				all += float64(a.Value)
			}
			if ready && j < 10 {
				in += float64(a.Value)
			}
		}
		if got := 100 * in / all; got < step.want-.1 || got > step.want+.1 || resp.RequeueAfter != step.wait {
			t.Errorf("step %d: %.1f %%, requeue after %v, want %.0f %%, %v", i, got, resp.RequeueAfter, step.want, step.wait)
		}
	}
}

// A group that becomes empty while another one has its shares on hold must not keep connections.
func TestGroupWithoutEndpointsLosesItsShareAtOnce(t *testing.T) {
	s := newPrioritySession(t, `{"mode":"priority","hold":"30s"}`)
	s.decide([2]int{0, 4}, [2]int{4, 0})
	s.Now += 1000
	s.decide([2]int{4, 0}, [2]int{4, 0})
	s.Now += 1000
	if got := sdktest.Answers(s.decide([2]int{4, 0}, [2]int{0, 4})); !slices.Equal(got[:4], []float64{1, 1, 1, 1}) {
		t.Errorf("shares %v", got)
	}
}

func TestDecisionByPriorityDoesNotDependOnHowOftenItIsMade(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		settings := `{"mode":"priority","hold":"5s","hysteresisPercent":10}`
		often, seldom := newPrioritySession(t, settings), newPrioritySession(t, settings)
		counts := [][2]int{{4, 0}, {4, 0}}
		now, wake, changed := int64(sdktest.Now), int64(0), true
		var last []float64
		for step := range 60 {
			if rnd.IntN(8) == 0 {
				i, up := rnd.IntN(2), rnd.IntN(5)
				counts[i], changed = [2]int{up, 4 - up}, true
			}
			now += 1000
			often.Now, seldom.Now = now, now
			want := sdktest.Answers(often.decide(counts...))
			if changed || wake != 0 && wake <= now { // as a host does
				resp := seldom.decide(counts...)
				last, changed, wake = sdktest.Answers(resp), false, 0
				if resp.RequeueAfter > 0 {
					wake = now + resp.RequeueAfter.Milliseconds()
				}
			}
			if !slices.Equal(last, want) {
				t.Fatalf("step %d, %v: called every second %v, called when needed %v", step, counts, want, last)
			}
		}
	}
}

func FuzzState(f *testing.F) {
	f.Add(newPrioritySession(f, priority).decide([2]int{1, 1}, [2]int{2, 0}).State, uint8(2), uint8(2))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x40, 0x42, 0x0f, 0, 0, 0, 0, 0}, uint8(0), uint8(1))
	f.Add([]byte{2}, uint8(1), uint8(0))
	f.Fuzz(func(t *testing.T, state []byte, a, b uint8) {
		if len(state) > abi.MaxStateLen || a+b == 0 || a > 20 || b > 20 {
			return
		}
		s := newPrioritySession(t, priority)
		s.State, s.Twice = state, true
		resp := s.decide([2]int{int(a), 3}, [2]int{int(b), 3})
		sum := 0
		for i, r := range resp.Results {
			if i < int(a) || i >= int(a)+3 && i < int(a+b)+3 {
				sum += int(r.Value)
			}
		}
		if sum == 0 || resp.RequeueAfter > 30*time.Second || len(resp.State) != 20+4*(2+2) {
			t.Fatalf("sum %d, requeue after %v, %d bytes of state", sum, resp.RequeueAfter, len(resp.State))
		}
	})
}
