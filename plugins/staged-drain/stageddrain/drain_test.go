package stageddrain

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// ago returns an endpoint that has been terminating for d.
func ago(zone string, d time.Duration) abi.Endpoint {
	return sdktest.Terminating(zone, sdktest.Now-d.Milliseconds())
}

func TestDrainGoesThroughItsStages(t *testing.T) {
	for _, tt := range []struct {
		gone    time.Duration
		weights []int // two ready, one draining
		reason  string
		requeue time.Duration
	}{
		{0, []int{1, 1, 1}, "draining: stage 1 of 3, 100 %", 10 * time.Second},
		{9 * time.Second, []int{1, 1, 1}, "draining: stage 1 of 3, 100 %", time.Second},
		{10 * time.Second, []int{2, 2, 1}, "draining: stage 2 of 3, 50 %", 10 * time.Second},
		{13 * time.Second, []int{2, 2, 1}, "draining: stage 2 of 3, 50 %", 7 * time.Second},
		{20 * time.Second, []int{10, 10, 1}, "draining: stage 3 of 3, 10 %", 10 * time.Second},
		{29 * time.Second, []int{10, 10, 1}, "draining: stage 3 of 3, 10 %", time.Second},
		{30 * time.Second, []int{1, 1, 0}, "draining: no new connections", 0},
		{time.Hour, []int{1, 1, 0}, "draining: no new connections", 0},
		{-time.Minute, []int{1, 1, 1}, "draining: stage 1 of 3, 100 %", 10 * time.Second}, // the clock went back
		{9*time.Second + 400*time.Millisecond, []int{2, 2, 1}, "draining: stage 2 of 3, 50 %", 10 * time.Second},
	} {
		t.Run(tt.gone.String(), func(t *testing.T) {
			req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Ready("a"), ago("a", tt.gone))
			resp := sdktest.MustRun(t, New(), "", req)
			if got := sdktest.Weights(resp); !slices.Equal(got, tt.weights) {
				t.Errorf("weights %v, want %v", got, tt.weights)
			}
			if got := resp.Results[2].Reason; got != tt.reason {
				t.Errorf("reason %q, want %q", got, tt.reason)
			}
			if resp.RequeueAfter != tt.requeue {
				t.Errorf("requeue after %v, want %v", resp.RequeueAfter, tt.requeue)
			}
			if resp.Results[2].Flags&abi.FlagKeepDraining == 0 || resp.Results[0].Flags != 0 {
				t.Error("not exactly the draining endpoint is kept as draining")
			}
		})
	}
}

func TestRequeueArrivesInTheNextStage(t *testing.T) {
	// The host rounds times down to whole seconds. With any fractions, no call is too early for its stage.
	for fraction := int64(0); fraction < 1000; fraction += 37 {
		began := int64(sdktest.Now) + fraction
		now, calls := began, 0
		for now < began+40_000 {
			req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Terminating("a", began))
			req.Now = now / 1000 * 1000
			resp := sdktest.MustRun(t, New(), "", req)
			calls++
			if resp.RequeueAfter == 0 {
				break
			}
			now = max(req.Now+resp.RequeueAfter.Milliseconds(), now+1)
		}
		if calls != 4 || now < began+29_000 || now > began+31_000 {
			t.Errorf("began at .%03d: %d calls, the last after %d ms; want 4, about 30000", fraction, calls, now-began)
		}
	}
}

func TestDrainingEndpointsKeepTheirWeightWhenNoOthersHaveAny(t *testing.T) {
	chosen := ago("a", time.Minute)
	chosen.Conditions |= abi.Chosen
	for name, tt := range map[string]struct {
		endpoints []abi.Endpoint
		want      []int
	}{
		"all terminate":               {[]abi.Endpoint{chosen, chosen}, []int{1, 1}},
		"the ready one has no weight": {[]abi.Endpoint{sdktest.Unchosen("a"), chosen}, []int{0, 1}},
		"nothing terminates":          {[]abi.Endpoint{sdktest.Ready("a"), sdktest.Unchosen("a")}, []int{1, 0}},
		"nothing at all":              {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			resp := sdktest.MustRun(t, New(), `{"resetAfterSeconds":0}`, sdktest.NewRequest("a", nil, tt.endpoints...))
			if got := sdktest.Weights(resp); !slices.Equal(got, tt.want) {
				t.Errorf("weights %v, want %v", got, tt.want)
			}
			for i, a := range resp.Results {
				if a.ResetAfterMS != abi.NeverReset {
					t.Errorf("endpoint %d would be reset, though nothing else takes its connections", i)
				}
			}
		})
	}
}

func TestResetFollowsTheLastStage(t *testing.T) {
	for gone, want := range map[time.Duration]uint32{
		0: 90_000, 10 * time.Second: 80_000, 89 * time.Second: 1000, 90 * time.Second: 0, time.Hour: 0,
	} {
		req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), ago("a", gone))
		resp := sdktest.MustRun(t, New(), `{"resetAfterSeconds":60}`, req)
		if got := resp.Results[1].ResetAfterMS; got != want {
			t.Errorf("%v into the drain: reset after %d ms, want %d", gone, got, want)
		}
		if resp.Results[0].ResetAfterMS != abi.NeverReset {
			t.Error("the ready endpoint would be reset")
		}
		if got := sdktest.MustRun(t, New(), "", req).Results[1].ResetAfterMS; got != abi.NeverReset {
			t.Errorf("without the setting: reset after %d ms", got)
		}
	}
}

func TestDrainWithUnknownStartGetsNoWeight(t *testing.T) {
	resp := sdktest.MustRun(t, New(), `{"resetAfterSeconds":60}`, sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Terminating("a", 0)))
	if a := resp.Results[1]; a.Weight != 0 || a.ResetAfterMS != abi.NeverReset || !strings.Contains(a.Reason, "unknown") {
		t.Errorf("%+v", a)
	}
}

func TestPeersShareZoneAndHints(t *testing.T) {
	weigh := func(e abi.Endpoint, w uint32, conditions uint32) abi.Endpoint {
		e.Weight, e.Conditions = w, e.Conditions|conditions
		return e
	}
	half := `{"stages":[{"weight":50,"seconds":10}]}`
	for name, tt := range map[string]struct {
		drain  abi.Endpoint
		others []abi.Endpoint
		want   []int
	}{
		"its zone": {
			ago("b", 0), []abi.Endpoint{weigh(sdktest.Ready("a"), 6, 0), weigh(sdktest.Ready("b"), 2, 0)}, []int{2, 12, 4},
		},
		"the mean of its zone": {
			ago("b", 0), []abi.Endpoint{weigh(sdktest.Ready("b"), 6, 0), weigh(sdktest.Ready("b"), 2, 0)}, []int{4, 12, 4},
		},
		"all, when it is the last of its zone": {
			ago("c", 0), []abi.Endpoint{weigh(sdktest.Ready("a"), 6, 0), weigh(sdktest.Ready("b"), 2, 0)}, []int{4, 12, 4},
		},
		"hinted to another zone": {
			ago("b", 0), []abi.Endpoint{weigh(sdktest.Ready("a"), 1, abi.HintedZone), sdktest.Unchosen("b")}, []int{0, 2, 0},
		},
		"hinted to this node": {
			weigh(ago("a", 0), 0, abi.HintedNode),
			[]abi.Endpoint{weigh(sdktest.Ready("a"), 1, abi.HintedNode), sdktest.Unchosen("a")}, []int{1, 2, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			resp := sdktest.MustRun(t, New(), half, sdktest.NewRequest("a", nil, append([]abi.Endpoint{tt.drain}, tt.others...)...))
			if got := sdktest.Weights(resp); !slices.Equal(got, tt.want) {
				t.Errorf("weights %v, want %v", got, tt.want)
			}
		})
	}
}

// reference is a second implementation without scale and groups. It returns the exact weight of each endpoint before
// scaling.
func reference(steps []stage, req *abi.Request) []float64 {
	shares := make([]float64, len(req.Endpoints))
	others := 0.0
	for _, e := range req.Endpoints {
		if e.Conditions&abi.Terminating == 0 {
			others += float64(e.Weight)
		}
	}
	for i, e := range req.Endpoints {
		shares[i] = float64(e.Weight)
		if e.Conditions&abi.Terminating == 0 || others == 0 {
			continue
		}
		percent := 0
		for j := len(steps) - 1; j >= 0; j-- {
			if e.TerminatingSince != 0 && req.Now-e.TerminatingSince < steps[j].end {
				percent = steps[j].percent
			}
		}
		mean := func(like func(o abi.Endpoint) bool) float64 {
			sum, n := 0.0, 0.0
			for _, o := range req.Endpoints {
				if o.Conditions&abi.Terminating == 0 && like(o) {
					sum, n = sum+float64(o.Weight), n+1
				}
			}
			return sum / n
		}
		const hints = abi.HintedNode | abi.HintedZone
		sameZone := func(o abi.Endpoint) bool { return o.Zone == e.Zone }
		m := mean(func(o abi.Endpoint) bool { return sameZone(o) && o.Conditions&hints == e.Conditions&hints })
		if math.IsNaN(m) {
			m = mean(sameZone)
		}
		if math.IsNaN(m) {
			m = mean(func(abi.Endpoint) bool { return true })
		}
		shares[i] = m * float64(percent) / 100
	}
	return shares
}

func TestWeightsAgreeWithTheReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 3000 {
		var stages []string
		for left := 100; len(stages) < 1+rnd.IntN(4); {
			left = rnd.IntN(left + 1)
			stages = append(stages, fmt.Sprintf(`{"weight":%d,"seconds":%d}`, left, 1+rnd.IntN(20)))
		}
		settings := `{"stages":[` + strings.Join(stages, ",") + `]}`
		var eps []abi.Endpoint
		for range 1 + rnd.IntN(12) {
			zone := string(rune('a' + rnd.IntN(3)))
			e := sdktest.Ready(zone)
			if rnd.IntN(3) == 0 {
				e = ago(zone, time.Duration(rnd.IntN(60))*time.Second)
			} else {
				e.Weight = uint32(rnd.IntN(4)) * uint32(1+rnd.IntN(9))
				e.Conditions &^= abi.Chosen
			}
			e.Conditions |= uint32(rnd.IntN(2)) * abi.HintedZone
			eps = append(eps, e)
		}
		req := sdktest.NewRequest("a", nil, eps...)
		resp := sdktest.MustRun(t, New(), settings, req)
		checker := New().(*plugin)
		if err := checker.Configure([]byte(settings)); err != nil {
			t.Fatal(err)
		}
		want := reference(checker.stages, req)
		scale := scaleOf(resp, req)
		sum := 0
		for i, a := range resp.Results {
			sum += int(a.Weight)
			exact := want[i] * scale
			// Rounded to the nearest integer, and at least 1 if above 0.
			if diff := math.Abs(float64(a.Weight) - exact); diff > .5001 && !(a.Weight == 1 && exact > 0) {
				t.Fatalf("round %d: endpoint %d has weight %d, want %.2f\n%s\n%+v", round, i, a.Weight, exact, settings, req.Endpoints)
			}
			if (a.Weight == 0) != (exact == 0) {
				t.Fatalf("round %d: endpoint %d has weight %d, want %.2f", round, i, a.Weight, exact)
			}
		}
		had := 0
		for _, e := range req.Endpoints {
			had += int(e.Weight)
		}
		if sum == 0 && had > 0 {
			t.Fatalf("round %d: the set was emptied", round)
		}
	}
}

// scaleOf returns the factor of the weights of endpoints that do not drain.
func scaleOf(resp *abi.Response, req *abi.Request) float64 {
	for i, e := range req.Endpoints {
		if e.Conditions&abi.Terminating == 0 && e.Weight > 0 {
			return float64(resp.Results[i].Weight) / float64(e.Weight)
		}
	}
	return 1
}

func TestLargeWeightsAreNotClamped(t *testing.T) {
	heavy := sdktest.Ready("a")
	heavy.Weight = 60000
	resp := sdktest.MustRun(t, New(), "", sdktest.NewRequest("a", nil, heavy, ago("a", 20*time.Second)))
	if got := sdktest.Weights(resp); !slices.Equal(got, []int{60000, 6000}) {
		t.Errorf("weights %v", got)
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"stages":[]}`:                                                  "stages: 0 stages",
		`{"stages":[{"weight":50}]}`:                                     "stages[0].seconds: missing",
		`{"stages":[{"seconds":5}]}`:                                     "stages[0].weight: missing",
		`{"stages":[{"weight":101,"seconds":5}]}`:                        "stages[0].weight: 101",
		`{"stages":[{"weight":-1,"seconds":5}]}`:                         "stages[0].weight: -1",
		`{"stages":[{"weight":5,"seconds":0}]}`:                          "stages[0].seconds: 0",
		`{"stages":[{"weight":5,"seconds":3601}]}`:                       "stages[0].seconds: 3601",
		`{"stages":[{"weight":5,"seconds":1.5}]}`:                        "stages[0].seconds: want an integer, got 1.5",
		`{"stages":[{"weight":5,"seconds":1},{"weight":6,"seconds":1}]}`: "stages[1].weight: 6 is more than 5",
		`{"stages":"fast"}`:                                              "stages: want a list, got a string",
		`{"resetAfterSeconds":-1}`:                                       "resetAfterSeconds: -1",
		`{"resetAfterSeconds":1e9}`:                                      "resetAfterSeconds: ",
		`{"stage":[]}`:                                                   `unknown field "stage"`,
		`{"stages":[`:                                                    "unexpected end",
		`[]`:                                                             "settings must be a JSON object, got a list",
	})
	for _, settings := range []string{"", "{}", `{"stages":[{"weight":0,"seconds":1}],"resetAfterSeconds":0}`} {
		if err := New().Configure([]byte(settings)); err != nil {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add(`{"stages":[{"weight":100,"seconds":10},{"weight":50,"seconds":10}],"resetAfterSeconds":60}`)
	f.Add(`{"stages":null}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, settings string) {
		if New().Configure([]byte(settings)) != nil {
			return
		}
		resp := sdktest.MustRun(t, New(), settings, sdktest.NewRequest("a", nil, sdktest.Ready("a"), ago("a", 7*time.Second)))
		if resp.Results[0].Weight == 0 || resp.Results[1].Weight > resp.Results[0].Weight {
			t.Errorf("weights %v", sdktest.Weights(resp))
		}
	})
}
