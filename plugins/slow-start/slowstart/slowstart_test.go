package slowstart

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/plugins/zone-spill/zonespill"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// since returns an endpoint that has been ready for d.
func since(d time.Duration) abi.Endpoint {
	e := sdktest.Ready("a")
	e.ReadySince = sdktest.Now - d.Milliseconds()
	return e
}

func TestNewEndpointGoesThroughItsSteps(t *testing.T) {
	for _, tt := range []struct {
		ready   time.Duration
		weights []int // two old ones, the new one
		reason  string
		requeue time.Duration
	}{
		{0, []int{10, 10, 1}, "new: 10 %", 12 * time.Second},
		{11 * time.Second, []int{10, 10, 1}, "new: 10 %", time.Second},
		{12 * time.Second, []int{5, 5, 1}, "new: 20 %", 6 * time.Second},
		{18 * time.Second, []int{10, 10, 3}, "new: 30 %", 6 * time.Second},
		{30 * time.Second, []int{2, 2, 1}, "new: 50 %", 6 * time.Second},
		{59 * time.Second, []int{10, 10, 9}, "new: 90 %", time.Second},
		{60 * time.Second, []int{1, 1, 1}, "", 0},
		{-time.Minute, []int{10, 10, 1}, "new: 10 %", 12 * time.Second}, // the clock went back
		{11*time.Second + 400*time.Millisecond, []int{5, 5, 1}, "new: 20 %", 6 * time.Second},
	} {
		t.Run(tt.ready.String(), func(t *testing.T) {
			resp := sdktest.MustRun(t, New(), "", sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Ready("b"), since(tt.ready)))
			if got := sdktest.Weights(resp); !slices.Equal(got, tt.weights) {
				t.Errorf("weights %v, want %v", got, tt.weights)
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

// Without an older endpoint there is nobody to take the connections: equally new endpoints share them as if all were old.
func TestEquallyNewEndpointsKeepTheirWeights(t *testing.T) {
	eps := sdktest.Repeat(4, since(5*time.Second))
	eps[1].Weight = 6
	eps[3] = since(8 * time.Second) // in the same step
	resp := sdktest.MustRun(t, New(), "", sdktest.NewRequest("a", nil, eps...))
	if got := sdktest.Weights(resp); !slices.Equal(got, []int{1, 6, 1, 1}) {
		t.Errorf("weights %v", got)
	}
	if got := resp.Results[2].Reason; got != "all endpoints are equally new" || resp.RequeueAfter != 4*time.Second {
		t.Errorf("reason %q, requeue after %v", got, resp.RequeueAfter)
	}
}

// In a rolling update the last old endpoint leaves when the last new one is ready. That one still starts slowly.
func TestNewestEndpointStartsSlowlyWhenNoneIsOld(t *testing.T) {
	eps := []abi.Endpoint{since(55 * time.Second), since(30 * time.Second), since(0), sdktest.Terminating("a", sdktest.Now)}
	if got := sdktest.Weights(sdktest.MustRun(t, New(), "", sdktest.NewRequest("a", nil, eps...))); !slices.Equal(got, []int{9, 5, 1, 0}) {
		t.Errorf("weights %v", got)
	}
}

func TestEndpointsThatAreNotReadyCountAsOld(t *testing.T) {
	leaving, held := sdktest.Terminating("a", sdktest.Now), sdktest.Held("a")
	leaving.Weight, leaving.ReadySince, held.Weight = 2, sdktest.Now, 3
	resp := sdktest.MustRun(t, New(), "", sdktest.NewRequest("a", nil, leaving, held, since(0), sdktest.NotReady("a")))
	if got := sdktest.Weights(resp); !slices.Equal(got, []int{20, 30, 1, 0}) {
		t.Errorf("weights %v", got)
	}
}

// exact is the formula of Envoy, "Slow start mode".
func exact(s settings, age time.Duration) float64 {
	factor := min(1, age.Seconds()/float64(s.WindowSeconds))
	return min(1, max(float64(s.MinPercent)/100, math.Pow(factor, 1/s.Aggression)))
}

func TestWeightsFollowTheCurveOfEnvoy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		s := settings{1 + rnd.Int64N(600), float64(1+rnd.IntN(40)) / 10, 1 + rnd.Int64N(100), 2 + rnd.Int64N(19)}
		text := fmt.Sprintf(`{"windowSeconds":%d,"aggression":%v,"minPercent":%d,"steps":%d}`, s.WindowSeconds, s.Aggression, s.MinPercent, s.Steps)
		eps := []abi.Endpoint{sdktest.Ready("a")} // an old one
		eps[0].Weight = uint32(1 + rnd.IntN(9))
		ages := []time.Duration{time.Hour}
		for range rnd.IntN(10) {
			age := time.Duration(rnd.Int64N(700)) * time.Second
			e := since(age)
			if e.Weight = uint32(rnd.IntN(10)); e.Weight == 0 {
				e = sdktest.Unchosen("a")
			}
			eps, ages = append(eps, e), append(ages, age)
		}
		resp := sdktest.MustRun(t, New(), text, sdktest.NewRequest("a", nil, eps...))
		unit := float64(resp.Results[0].Weight) / float64(eps[0].Weight) // of an old endpoint with weight 1
		for i, e := range eps {
			got, want := float64(resp.Results[i].Weight), float64(e.Weight)*unit*exact(s, ages[i])
			// At most a step below the curve, as a step has the weight of its start, and above it only by rounding the minimum up.
			slack := float64(e.Weight) * unit / float64(s.Steps)
			above := 1e-6
			if exact(s, ages[i])*100 <= float64(s.MinPercent)+100/float64(s.Steps) {
				above += slack
			}
			if got < want-slack-1e-6 || got > want+above || (got == 0) != (e.Weight == 0) {
				t.Fatalf("round %d: %s: endpoint %d, ready for %v, has %v, want %.2f", round, text, i, ages[i], got, want)
			}
		}
	}
}

func TestCallsAreBoundedAndNoneIsMissed(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 40 {
		steps, window := 2+rnd.IntN(19), int64(10+rnd.IntN(300))
		text := fmt.Sprintf(`{"windowSeconds":%d,"steps":%d,"aggression":%v}`, window, steps, .5+float64(rnd.IntN(30))/10)
		began := int64(sdktest.Now) + int64(rnd.IntN(1000))
		decide := func(now int64) *abi.Response {
			e := sdktest.Ready("a")
			e.ReadySince = began
			req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), e)
			req.Now = now / 1000 * 1000
			return sdktest.MustRun(t, New(), text, req)
		}
		calls, wake := 0, began
		var seldom []int
		for now := began; now <= began+(window+1)*1000; now += 1000 {
			if wake != 0 && wake <= now/1000*1000 || calls == 0 {
				resp := decide(now)
				seldom, wake = sdktest.Weights(resp), 0
				if calls++; resp.RequeueAfter > 0 {
					wake = now/1000*1000 + resp.RequeueAfter.Milliseconds()
				}
			}
			if want := sdktest.Weights(decide(now)); !slices.Equal(seldom, want) {
				t.Fatalf("round %d: %s: %v after %d ms, want %v", round, text, seldom, now-began, want)
			}
		}
		if calls > steps+1 || !slices.Equal(seldom, []int{1, 1}) {
			t.Fatalf("round %d: %s: %d calls, %v at the end", round, text, calls, seldom)
		}
	}
}

func TestLargeWeightsKeepTheirRatios(t *testing.T) {
	old, fresh := sdktest.Ready("a"), since(30*time.Second)
	old.Weight, fresh.Weight = 60000, 60000
	small := sdktest.Ready("a")
	resp := sdktest.MustRun(t, New(), `{"steps":20}`, sdktest.NewRequest("a", nil, old, fresh, small, since(0)))
	if got := sdktest.Weights(resp); !slices.Equal(got, []int{65535, 32767, 1, 1}) {
		t.Errorf("weights %v", got)
	}
}

// Zones keep their shares of the endpoints that they have; a new endpoint counts as a part of one.
func TestSlowStartAndZoneSpillCompose(t *testing.T) {
	slow := sdktest.Native(t, New, "")
	spill := sdktest.Native(t, zonespill.New, "")
	fresh, far := since(30*time.Second), sdktest.Ready("b")
	req := sdktest.NewRequest("a", map[string]int{"a": 1, "b": 1}, sdktest.Ready("a"), sdktest.Ready("a"), fresh, far, far, far)
	for _, chain := range [][]*sdk.NativePlugin{{slow, spill}, {spill, slow}} {
		all := sdktest.MustRunChain(t, req, chain...)
		w := sdktest.Weights(all[1])
		if w[0] != 2*w[2] || w[0] != w[1] || w[0] == 0 {
			t.Errorf("weights %v: the new endpoint should have half of an old one's", w)
		}
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"windowSeconds":0}`:    "windowSeconds: 0 is not 1 to 3600",
		`{"windowSeconds":3601}`: "windowSeconds: 3601",
		`{"aggression":0}`:       "aggression: 0 is not 0.1 to 10",
		`{"aggression":1e9}`:     "aggression: 1e+09 is not 0.1 to 10",
		`{"minPercent":0}`:       "minPercent: 0",
		`{"minPercent":101}`:     "minPercent: 101",
		`{"steps":1}`:            "steps: 1 is not 2 to 20",
		`{"steps":21}`:           "steps: 21",
		`{"steps":"many"}`:       "steps: want an integer, got a string",
		`{"window":5}`:           `unknown field "window"`,
	})
}

func FuzzSettingsAndState(f *testing.F) {
	f.Add(`{"windowSeconds":30,"aggression":2.5,"minPercent":5,"steps":20}`, []byte{1, 2}, int64(1000), int64(-5))
	f.Add(`null`, []byte{}, int64(math.MaxInt64), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, settings string, state []byte, ready, other int64) {
		if New().Configure([]byte(settings)) != nil || len(state) > abi.MaxStateLen {
			return
		}
		req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), since(0), since(0))
		req.Endpoints[1].ReadySince, req.Endpoints[2].ReadySince, req.State = ready, other, state
		resp := sdktest.MustRun(t, New(), settings, req)
		for i, a := range resp.Results {
			if a.Weight == 0 || a.Weight > resp.Results[0].Weight {
				t.Errorf("endpoint %d: weights %v", i, sdktest.Weights(resp))
			}
		}
	})
}
