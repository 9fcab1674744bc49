package lifecycle

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

const drainOnly = `{"drain":{}}`

// ago returns an endpoint that has been terminating for d.
func ago(zone string, d time.Duration) abi.Endpoint {
	return sdktest.Terminating(zone, sdktest.Now-d.Milliseconds())
}

func TestDrainGoesThroughItsStages(t *testing.T) {
	for _, tt := range []struct {
		gone     time.Duration
		capacity float64 // the ready ones have 1
		reason   string
		requeue  time.Duration
	}{
		{0, 1, "draining: stage 1 of 3, 100 %", 10 * time.Second},
		{9 * time.Second, 1, "draining: stage 1 of 3, 100 %", time.Second},
		{10 * time.Second, .5, "draining: stage 2 of 3, 50 %", 10 * time.Second},
		{13 * time.Second, .5, "draining: stage 2 of 3, 50 %", 7 * time.Second},
		{20 * time.Second, .1, "draining: stage 3 of 3, 10 %", 10 * time.Second},
		{29 * time.Second, .1, "draining: stage 3 of 3, 10 %", time.Second},
		{30 * time.Second, 0, "draining: no new connections", 0},
		{time.Hour, 0, "draining: no new connections", 0},
		{-time.Minute, 1, "draining: stage 1 of 3, 100 %", 10 * time.Second}, // the clock went back
		{9*time.Second + 400*time.Millisecond, .5, "draining: stage 2 of 3, 50 %", 10 * time.Second},
	} {
		t.Run(tt.gone.String(), func(t *testing.T) {
			req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Ready("a"), ago("a", tt.gone))
			resp := sdktest.MustRun(t, New(), drainOnly, req)
			if got, want := sdktest.Answers(resp), []float64{1, 1, tt.capacity}; !slices.Equal(got, want) {
				t.Errorf("capacities %v, want %v", got, want)
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
			resp := sdktest.MustRun(t, New(), drainOnly, req)
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

func TestDrainingEndpointsKeepTheirShareWhenThereAreNoOthers(t *testing.T) {
	chosen := ago("a", time.Minute)
	chosen.Conditions |= abi.Chosen
	hinted := chosen
	hinted.Conditions |= abi.HintedZone
	for name, tt := range map[string]struct {
		endpoints []abi.Endpoint
		want      []float64
	}{
		"all terminate":              {[]abi.Endpoint{chosen, chosen}, []float64{1, 1}},
		"the ready one has no share": {[]abi.Endpoint{sdktest.Unchosen("b"), hinted}, []float64{1, 1}},
		"nothing terminates":         {[]abi.Endpoint{sdktest.Ready("a"), sdktest.NotReady("a")}, []float64{1, 0}},
		"nothing at all":             {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			resp := sdktest.MustRun(t, New(), `{"drain":{"resetAfter":"0s"}}`, sdktest.NewRequest("a", nil, tt.endpoints...))
			if got := sdktest.Answers(resp); !slices.Equal(got, tt.want) {
				t.Errorf("capacities %v, want %v", got, tt.want)
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
		resp := sdktest.MustRun(t, New(), `{"drain":{"resetAfter":"60s"}}`, req)
		if got := resp.Results[1].ResetAfterMS; got != want {
			t.Errorf("%v into the drain: reset after %d ms, want %d", gone, got, want)
		}
		if resp.Results[0].ResetAfterMS != abi.NeverReset {
			t.Error("the ready endpoint would be reset")
		}
		if got := sdktest.MustRun(t, New(), drainOnly, req).Results[1].ResetAfterMS; got != abi.NeverReset {
			t.Errorf("without the setting: reset after %d ms", got)
		}
	}
}

func TestDrainWithUnknownStartGetsNothing(t *testing.T) {
	resp := sdktest.MustRun(t, New(), `{"drain":{"resetAfter":"60s"}}`, sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Terminating("a", 0)))
	if a := resp.Results[1]; a.Value != 0 || a.ResetAfterMS != abi.NeverReset || !strings.Contains(a.Reason, "unknown") {
		t.Errorf("%+v", a)
	}
}

func TestDrainStartsAtTheMeanCapacityOfTheOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		others []uint32
		want   float64
	}{
		"ordinary ones":         {[]uint32{abi.One, abi.One}, .5},
		"of other sizes":        {[]uint32{2 * abi.One, 6 * abi.One}, 2},
		"one is excluded":       {[]uint32{0, 2 * abi.One}, 1},
		"hardly any is left":    {[]uint32{1}, 1e-6},
		"the largest there are": {[]uint32{math.MaxUint32, math.MaxUint32}, 2147.483648},
	} {
		t.Run(name, func(t *testing.T) {
			req := sdktest.NewRequest("a", nil, append(sdktest.Repeat(len(tt.others), sdktest.Ready("a")), ago("b", 0))...)
			for i, c := range tt.others {
				req.Endpoints[i].Capacity = c
			}
			got := sdktest.Answers(sdktest.MustRun(t, New(), `{"drain":{"stages":[{"percent":50,"duration":"10s"}]}}`, req))
			if last := got[len(got)-1]; last != tt.want {
				t.Errorf("capacity %v, want %v", last, tt.want)
			}
			for i, c := range tt.others {
				if got[i] != float64(c)/abi.One {
					t.Errorf("endpoint %d: capacity %v", i, got[i])
				}
			}
		})
	}
}

// An endpoint that topology hints kept from this node while it was ready stays without connections while it drains.
func TestHintsApplyToDrainingEndpoints(t *testing.T) {
	hinted := sdktest.Ready("a")
	hinted.Conditions |= abi.HintedZone
	here, there := ago("a", 0), ago("b", 0)
	here.Conditions |= abi.HintedZone
	parts, err := sdktest.Parts(sdktest.NewRequest("a", nil, hinted, sdktest.Unchosen("b"), here, there), sdktest.Native(t, New, drainOnly))
	if err != nil || !slices.Equal(parts, []float64{.5, 0, .5, 0}) {
		t.Errorf("parts %v, %v", parts, err)
	}
}

func TestDrainingEndpointsAreNeverTheOnlyOnesWithAShare(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	drain := sdktest.Native(t, New, drainOnly)
	for round := range 3000 {
		var eps []abi.Endpoint
		for range 1 + rnd.IntN(6) {
			e := []abi.Endpoint{
				sdktest.Ready("a"), sdktest.Unchosen("b"), ago("a", time.Duration(rnd.IntN(40))*time.Second), sdktest.NotReady("a"),
			}[rnd.IntN(4)]
			e.Conditions |= uint32(rnd.IntN(2)) * abi.HintedZone
			eps = append(eps, e)
		}
		req := sdktest.NewRequest("a", nil, eps...)
		for i := range req.Endpoints {
			req.Endpoints[i].Capacity *= uint32(rnd.IntN(3))
		}
		before := req.Parts(nil)
		after, err := sdktest.Parts(req, drain)
		if err != nil || (before == nil) != (after == nil) {
			t.Fatalf("round %d: parts %v became %v, %v", round, before, after, err)
		}
	}
}

func TestBadDrainSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"drain":{"stages":[]}}`:                                                            "drain.stages: 0 stages",
		`{"drain":{"stages":[{"percent":50}]}}`:                                              "drain.stages[0].duration: missing",
		`{"drain":{"stages":[{"duration":"5s"}]}}`:                                           "drain.stages[0].percent: missing",
		`{"drain":{"stages":[{"percent":101,"duration":"5s"}]}}`:                             "drain.stages[0].percent: 101",
		`{"drain":{"stages":[{"percent":-1,"duration":"5s"}]}}`:                              "drain.stages[0].percent: -1",
		`{"drain":{"stages":[{"percent":5,"duration":"0s"}]}}`:                               "drain.stages[0].duration: 0s is not 1s to 1h",
		`{"drain":{"stages":[{"percent":5,"duration":"3601s"}]}}`:                            "drain.stages[0].duration: 1h1s",
		`{"drain":{"stages":[{"percent":5,"duration":5}]}}`:                                  "drain.stages[0].duration: want a duration such as 30s or 1m30s, got a number",
		`{"drain":{"stages":[{"percent":5,"duration":"1s"},{"percent":6,"duration":"1s"}]}}`: "drain.stages[1].percent: 6 is more than 5",
		`{"drain":{"stages":"fast"}}`:                                                        "drain.stages: want a list, got a string",
		`{"drain":{"resetAfter":"-1s"}}`:                                                     `drain.resetAfter: "-1s" is not a duration`,
		`{"drain":{"resetAfter":"24h1s"}}`:                                                   "drain.resetAfter: 24h1s is not 0s to 24h",
		`{"drain":{"stage":[]}}`:                                                             `drain: unknown field "stage"`,
		`{"drain":{"stages":[`:                                                               "unexpected end",
		`[]`:                                                                                 "settings must be a JSON object, got a list",
	})
	for _, settings := range []string{"", "{}", `{"drain":{"stages":null}}`, `{"drain":{"stages":[{"percent":0,"duration":"1s"}],"resetAfter":"0s"}}`} {
		if err := New().Configure([]byte(settings)); err != nil {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

func FuzzDrainSettings(f *testing.F) {
	f.Add(`{"drain":{"stages":[{"percent":100,"duration":"10s"},{"percent":50,"duration":"10s"}],"resetAfter":"1m"}}`)
	f.Add(`{"drain":null}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, settings string) {
		if New().Configure([]byte(settings)) != nil {
			return
		}
		resp := sdktest.MustRun(t, New(), settings, sdktest.NewRequest("a", nil, sdktest.Ready("a"), ago("a", 7*time.Second)))
		if resp.Results[0].Value == 0 || resp.Results[1].Value > resp.Results[0].Value {
			t.Errorf("capacities %v", sdktest.Answers(resp))
		}
	})
}
