package lifecycle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

const warmOnly = `{"warm":{}}`

// since returns an endpoint that has been ready for d.
func since(d time.Duration) abi.Endpoint {
	e := sdktest.Ready("a")
	e.ReadySince = sdktest.Now - d.Milliseconds()
	return e
}

func TestNewEndpointGoesThroughItsSteps(t *testing.T) {
	for _, tt := range []struct {
		ready    time.Duration
		capacity float64 // of the new one; old ones have 1
		reason   string
		requeue  time.Duration
	}{
		{0, .1, "new: 10 %", 12 * time.Second},
		{11 * time.Second, .1, "new: 10 %", time.Second},
		{12 * time.Second, .2, "new: 20 %", 6 * time.Second},
		{18 * time.Second, .3, "new: 30 %", 6 * time.Second},
		{30 * time.Second, .5, "new: 50 %", 6 * time.Second},
		{59 * time.Second, .9, "new: 90 %", time.Second},
		{60 * time.Second, 1, "", 0},
		{-time.Minute, .1, "new: 10 %", 12 * time.Second}, // the clock went back
		{11*time.Second + 400*time.Millisecond, .2, "new: 20 %", 6 * time.Second},
	} {
		t.Run(tt.ready.String(), func(t *testing.T) {
			resp := sdktest.MustRun(t, New(), warmOnly, sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Ready("b"), since(tt.ready)))
			if got, want := sdktest.Answers(resp), []float64{1, 1, tt.capacity}; !slices.Equal(got, want) {
				t.Errorf("capacities %v, want %v", got, want)
			}
			if got := resp.Results[2].Reason; got != tt.reason || resp.Results[0].Reason != "" {
				t.Errorf("reasons %q, %q, want %q", resp.Results[0].Reason, got, tt.reason)
			}
			if resp.RequeueAfter != tt.requeue {
				t.Errorf("requeue after %v, want %v", resp.RequeueAfter, tt.requeue)
			}
		})
	}
}

// Only ratios matter: equally new endpoints share connections as if all were old.
func TestEquallyNewEndpointsShareEvenly(t *testing.T) {
	eps := sdktest.Repeat(4, since(5*time.Second))
	eps[3] = since(8 * time.Second) // in the same step
	req := sdktest.NewRequest("a", nil, eps...)
	parts, err := sdktest.Parts(req, sdktest.Native(t, New, warmOnly))
	if err != nil || parts[0] != parts[1] || parts[0] != parts[3] {
		t.Errorf("parts %v, %v", parts, err)
	}
	if wait := sdktest.MustRun(t, New(), warmOnly, req).RequeueAfter; wait != 4*time.Second {
		t.Errorf("requeue after %v", wait)
	}
}

// In a rolling update the last old endpoint leaves when the last new one is ready. That one still starts slowly.
func TestNewestEndpointStartsSlowlyWhenNoneIsOld(t *testing.T) {
	eps := []abi.Endpoint{since(55 * time.Second), since(30 * time.Second), since(0), sdktest.Terminating("a", sdktest.Now)}
	if got := sdktest.Answers(sdktest.MustRun(t, New(), warmOnly, sdktest.NewRequest("a", nil, eps...))); !slices.Equal(got, []float64{.9, .5, .1, 0}) {
		t.Errorf("capacities %v", got)
	}
}

func TestEndpointsThatAreNotReadyCountAsOld(t *testing.T) {
	leaving := sdktest.Terminating("a", sdktest.Now)
	leaving.ReadySince = sdktest.Now
	req := sdktest.NewRequest("a", nil, leaving, sdktest.Held("a"), since(0), sdktest.NotReady("a"))
	req.Endpoints[0].Capacity = 500_000
	if got := sdktest.Answers(sdktest.MustRun(t, New(), warmOnly, req)); !slices.Equal(got, []float64{.5, 1, .1, 0}) {
		t.Errorf("capacities %v", got)
	}
}

// An endpoint that topology hints keep from this node warms up too: a plugin for locality may use it.
func TestEndpointsWithoutShareWarmUp(t *testing.T) {
	far := sdktest.Unchosen("b")
	far.ReadySince = sdktest.Now
	if got := sdktest.Answers(sdktest.MustRun(t, New(), warmOnly, sdktest.NewRequest("a", nil, sdktest.Ready("a"), far))); !slices.Equal(got, []float64{1, .1}) {
		t.Errorf("capacities %v", got)
	}
}

// exact is the formula of Envoy, "Slow start mode".
func exact(s warmSettings, age time.Duration) float64 {
	factor := min(1, age.Seconds()/float64(s.DurationSeconds))
	return min(1, max(float64(s.MinPercent)/100, math.Pow(factor, 1/s.Aggression)))
}

func TestCapacitiesFollowTheCurveOfEnvoy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		s := warmSettings{1 + rnd.Int64N(600), float64(1+rnd.IntN(40)) / 10, 1 + rnd.Int64N(100), 2 + rnd.Int64N(19)}
		text := fmt.Sprintf(`{"warm":{"duration":"%ds","aggression":%v,"minPercent":%d,"steps":%d}}`, s.DurationSeconds, s.Aggression, s.MinPercent, s.Steps)
		eps, ages, capacities := []abi.Endpoint{}, []time.Duration{}, []uint32{}
		for range 1 + rnd.IntN(10) {
			ages = append(ages, time.Duration(rnd.Int64N(700))*time.Second)
			eps, capacities = append(eps, since(ages[len(ages)-1])), append(capacities, uint32(rnd.IntN(10))*300_000)
		}
		req := sdktest.NewRequest("a", nil, eps...)
		for i := range capacities {
			req.Endpoints[i].Capacity = capacities[i]
		}
		resp := sdktest.MustRun(t, New(), text, req)
		for i, age := range ages {
			full := float64(capacities[i])
			got, want := float64(resp.Results[i].Value), full*exact(s, age)
			// At most a step below the curve, as a step has the capacity of its start, and above it only by rounding the minimum
			// up.
			slack, above := full/float64(s.Steps)+1, 1.0
			if exact(s, age)*100 <= float64(s.MinPercent)+100/float64(s.Steps) {
				above += slack
			}
			if got < want-slack || got > want+above || (got == 0) != (full == 0) {
				t.Fatalf("round %d: %s: endpoint %d, ready for %v, has %v, want %.2f", round, text, i, age, got, want)
			}
		}
	}
}

func TestCallsAreBoundedAndNoneIsMissed(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 40 {
		steps, window := 2+rnd.IntN(19), int64(10+rnd.IntN(300))
		text := fmt.Sprintf(`{"warm":{"duration":"%ds","steps":%d,"aggression":%v}}`, window, steps, .5+float64(rnd.IntN(30))/10)
		began := int64(sdktest.Now) + int64(rnd.IntN(1000))
		decide := func(now int64) *abi.Response {
			e := sdktest.Ready("a")
			e.ReadySince = began
			req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), e)
			req.Now = now / 1000 * 1000
			return sdktest.MustRun(t, New(), text, req)
		}
		calls, wake := 0, began
		var seldom []float64
		for now := began; now <= began+(window+1)*1000; now += 1000 {
			if wake != 0 && wake <= now/1000*1000 || calls == 0 {
				resp := decide(now)
				seldom, wake = sdktest.Answers(resp), 0
				if calls++; resp.RequeueAfter > 0 {
					wake = now/1000*1000 + resp.RequeueAfter.Milliseconds()
				}
			}
			if want := sdktest.Answers(decide(now)); !slices.Equal(seldom, want) {
				t.Fatalf("round %d: %s: %v after %d ms, want %v", round, text, seldom, now-began, want)
			}
		}
		if calls > steps+1 || !slices.Equal(seldom, []float64{1, 1}) {
			t.Fatalf("round %d: %s: %d calls, %v at the end", round, text, calls, seldom)
		}
	}
}

func TestBadWarmSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"warm":{"duration":"0s"}}`:     "warm.duration: 0s is not 1s to 1h",
		`{"warm":{"duration":"1h1s"}}`:   "warm.duration: 1h1s",
		`{"warm":{"duration":"1500ms"}}`: "warm.duration: 1s500ms is not in whole seconds",
		`{"warm":{"duration":60}}`:       "warm.duration: want a duration such as 30s or 1m30s, got a number",
		`{"warm":{"aggression":0}}`:      "warm.aggression: 0 is not 0.1 to 10",
		`{"warm":{"aggression":1e9}}`:    "warm.aggression: 1e+09 is not 0.1 to 10",
		`{"warm":{"minPercent":0}}`:      "warm.minPercent: 0",
		`{"warm":{"minPercent":101}}`:    "warm.minPercent: 101",
		`{"warm":{"steps":1}}`:           "warm.steps: 1 is not 2 to 20",
		`{"warm":{"steps":21}}`:          "warm.steps: 21",
		`{"warm":{"steps":"many"}}`:      "warm.steps: want an integer, got a string",
		`{"warm":{"window":"5s"}}`:       `warm: unknown field "window"`,
		`{"warm":true}`:                  "warm: want an object, got true or false",
		`{"window":"5s"}`:                `unknown field "window"`,
	})
}

func FuzzSettingsAndState(f *testing.F) {
	f.Add(`{"warm":{"duration":"30s","aggression":2.5,"minPercent":5,"steps":20}}`, []byte{1, 2}, int64(1000), int64(-5))
	f.Add(`null`, []byte{}, int64(math.MaxInt64), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, settings string, state []byte, ready, other int64) {
		if New().Configure([]byte(settings)) != nil || len(state) > abi.MaxStateLen {
			return
		}
		req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), since(0), since(0))
		req.Endpoints[1].ReadySince, req.Endpoints[2].ReadySince, req.State = ready, other, state
		resp := sdktest.MustRun(t, New(), settings, req)
		for i, a := range resp.Results {
			if a.Value == 0 || a.Value > resp.Results[0].Value {
				t.Errorf("endpoint %d: capacities %v", i, sdktest.Answers(resp))
			}
		}
	})
}
