package locality

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/plugins/canary/canary"
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// inZone returns endpoints of a zone.
func inZone(name string, healthy, unhealthy int) []abi.Endpoint {
	return append(sdktest.Repeat(healthy, sdktest.Ready(name)), sdktest.Repeat(unhealthy, sdktest.NotReady(name))...)
}

// percent returns what each zone gets of the new connections, in percent.
func percent(t *testing.T, req *abi.Request, settings string, before ...*sdk.NativePlugin) map[string]float64 {
	t.Helper()
	return sdktest.ZonePercents(t, req, append(before, sdktest.Native(t, New, settings))...)
}

const priority = `{"mode":"priority"}`

const inOrder = `{"mode":"priority","groups":[{"values":["a"]},{"values":["b"]},{"values":["c"]}]}`

// The examples of Envoy's document "Priority levels".
func TestSharesAreThoseOfEnvoy(t *testing.T) {
	for _, tt := range []struct {
		healthy []int // percent, of zones a, b and c
		want    []float64
	}{
		{[]int{100, 100}, []float64{100, 0}},
		{[]int{72, 100}, []float64{100, 0}},
		{[]int{71, 100}, []float64{99.4, 0.6}},
		{[]int{50, 100}, []float64{70, 30}},
		{[]int{25, 100}, []float64{35, 65}},
		{[]int{0, 100}, []float64{0, 100}},
		{[]int{100, 100, 100}, []float64{100, 0, 0}},
		{[]int{72, 72, 100}, []float64{100, 0, 0}},
		{[]int{71, 71, 100}, []float64{99.4, 0.6, 0}},
		{[]int{50, 50, 100}, []float64{70, 30, 0}},
		{[]int{25, 100, 100}, []float64{35, 65, 0}},
		{[]int{25, 25, 100}, []float64{35, 35, 30}},
		{[]int{20, 20, 10}, []float64{40, 40, 20}}, // normalized
		{[]int{0, 0, 10}, []float64{0, 0, 100}},
	} {
		var eps []abi.Endpoint
		for i, h := range tt.healthy {
			eps = append(eps, inZone(string(rune('a'+i)), h, 100-h)...)
		}
		req := sdktest.NewRequest("z", nil, eps...)
		got := percent(t, req, inOrder)
		for i, want := range tt.want {
			if z := string(rune('a' + i)); math.Abs(got[z]-want) > .01 {
				t.Errorf("%v %% healthy: %v, want %v", tt.healthy, got, tt.want)
			}
		}
	}
}

// Without settings: this node's zone first.
func TestZoneOfTheNodeIsFirst(t *testing.T) {
	req := sdktest.NewRequest("b", nil, slices.Concat(inZone("a", 2, 0), inZone("b", 1, 1), inZone("c", 2, 0))...)
	resp := sdktest.MustRun(t, New(), priority, req)
	if got := percent(t, req, priority); math.Abs(got["b"]-70) > .01 || math.Abs(got["a"]-15) > .01 {
		t.Errorf("%v", got)
	}
	for i, want := range []string{"group 2 of 2 (others): 30 %", "", "group 1 of 2 (this zone): 70 %", ""} {
		if got := resp.Results[i].Reason; want != "" && got != want {
			t.Errorf("endpoint %d: %q, want %q", i, got, want)
		}
	}
	if req.Zone = ""; !slices.Equal(sdktest.Answers(sdktest.MustRun(t, New(), priority, req)), []float64{1, 1, 1, 1, 1, 1}) {
		t.Error("shares change although the zone of the node is unknown")
	}
	// An order of zones, the same on every node, but with the own zone first.
	req.Zone = "c"
	if got := percent(t, req, `{"mode":"priority","groups":[{"values":["@local"]},{"values":["a"]},{"values":["b","c"]}]}`); math.Abs(got["c"]-100) > 1e-9 {
		t.Errorf("%v, want all to zone c", got)
	}
}

func TestGroupsByLabelOrAnnotation(t *testing.T) {
	for _, by := range []string{"label:example.com/tier", "annotation:tier"} {
		with := func(e abi.Endpoint, values ...string) abi.Endpoint { e.Values = sdktest.Values(values...); return e }
		req := sdktest.NewRequest("a", nil, with(sdktest.Ready("a"), "backup"), with(sdktest.Ready("b"), "main"), with(sdktest.NotReady("a"), "main"),
			with(sdktest.Ready("a"), ""), with(sdktest.Ready("a")))
		req.Keys = []string{by}
		settings := `{"mode":"priority","by":"` + by + `","groups":[{"values":["main"]},{"values":["backup"]}]}`
		parts, err := sdktest.Parts(req, sdktest.Native(t, New, settings))
		if err != nil || math.Abs(parts[0]-.3) > 1e-6 || math.Abs(parts[1]-.7) > 1e-6 {
			t.Errorf("%s: parts %v, %v", by, parts, err)
		}
	}
}

func TestCapacitiesAndSharesAreRespected(t *testing.T) {
	req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Ready("a"), sdktest.Ready("a"), sdktest.Terminating("a", sdktest.Now),
		sdktest.Unchosen("b"), sdktest.Ready("b"))
	req.Endpoints[0].Capacity = 0 // a previous plugin has excluded it: 2 of 3 of the group are healthy
	req.Endpoints[2].Capacity, req.Endpoints[3].Capacity, req.Endpoints[5].Share = 500_000, 500_000, 500_000
	w, err := sdktest.Parts(req, sdktest.Native(t, New, priority))
	if err != nil {
		t.Fatal(err)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	if w[0] != 0 || !near(w[1], 2*w[2]) || w[3] != w[2] || !near(w[4], 2*w[5]) || w[5] == 0 || !near(w[1]+w[2]+w[3], 1.4*2/3) {
		t.Errorf("parts %v", w)
	}
}

func TestSharesAreKeptWhenNothingIsHealthy(t *testing.T) {
	s := newPrioritySession(t, priority)
	s.decide([2]int{0, 4}, [2]int{4, 0})
	state := s.State
	req := sdktest.NewRequest("a", nil, sdktest.Held("a"), sdktest.Terminating("b", sdktest.Now), sdktest.NotReady("b"))
	req.Endpoints[1].Capacity = 500_000
	resp := s.Decide(req)
	if got := sdktest.Answers(resp); !slices.Equal(got, []float64{1, 1, 1}) || !slices.Equal(resp.State, state) {
		t.Errorf("shares %v, state %v", got, resp.State)
	}
	// They are healthy again: a failure of all is not the first decision afterwards.
	if resp = s.decide([2]int{4, 0}, [2]int{4, 0}); resp.RequeueAfter != 30*time.Second {
		t.Errorf("requeue after %v", resp.RequeueAfter)
	}
}

// Each group of a previous plugin fails over by its own endpoints.
func TestGroupsOfThePreviousPluginFailOverByThemselves(t *testing.T) {
	eps := slices.Concat(inZone("a", 3, 0), inZone("b", 3, 0))
	eps[0] = sdktest.NotReady("a")
	for i := range eps {
		eps[i].Values = sdktest.Values("stable")
	}
	eps[0].Values, eps[3].Values = sdktest.Values("canary"), sdktest.Values("canary")
	req := sdktest.NewRequest("a", nil, eps...)
	req.Keys = []string{sdk.PodLabel("track")}
	got, err := sdktest.Parts(req, sdktest.Native(t, canary.New, `{"groups":[{"value":"canary","percent":10}]}`), sdktest.Native(t, New, priority))
	for i, want := range []float64{0, .45, .45, .1, 0, 0} {
		if err != nil || math.Abs(got[i]-want) > 1e-6 {
			t.Errorf("endpoint %d gets %v, want %v, %v", i, got, want, err)
		}
	}
}

// A scale-down of a group is no failure.
func TestTerminatingEndpointsDoNotCount(t *testing.T) {
	req := sdktest.NewRequest("a", nil, slices.Concat(inZone("a", 2, 0), sdktest.Repeat(6, sdktest.Terminating("a", sdktest.Now)), inZone("b", 3, 0))...)
	if got := percent(t, req, priority); math.Abs(got["a"]-100) > 1e-9 {
		t.Errorf("%v", got)
	}
}

// shares is a second implementation of the rule, in floating point.
func shares(healthy, all []int, factor float64) []float64 {
	score := make([]float64, len(all))
	sum := 0.0
	for i := range all {
		if all[i] > 0 {
			score[i] = min(1, factor*float64(healthy[i])/float64(all[i]))
		}
		sum += score[i]
	}
	left := 1.0
	for i := range score {
		score[i] = min(left, score[i]/min(1, sum))
		left -= score[i]
	}
	return score
}

func TestSharesAgreeWithTheReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 500 {
		n := 1 + rnd.IntN(5)
		var eps []abi.Endpoint
		var healthy, all []int
		var groups []string
		some := false
		for i := range n {
			h, u := rnd.IntN(8), rnd.IntN(8)
			healthy, all = append(healthy, h), append(all, h+u)
			eps = append(eps, inZone(string(rune('a'+i)), h, u)...)
			groups = append(groups, `{"values":["`+string(rune('a'+i))+`"]}`)
			some = some || h > 0
		}
		if !some {
			continue
		}
		over := 100 + rnd.IntN(100)
		settings := `{"mode":"priority","groups":[` + strings.Join(groups[:max(1, n-1)], ",") + `],"overprovisioningPercent":` + strconv.Itoa(over) + `}`
		rnd.Shuffle(len(eps), func(i, j int) { eps[i], eps[j] = eps[j], eps[i] })
		req := sdktest.NewRequest("z", nil, eps...)
		got := percent(t, req, settings)
		for i, want := range shares(healthy, all, float64(over)/100) {
			if z := string(rune('a' + i)); math.Abs(got[z]-100*want) > .01 {
				t.Fatalf("round %d: %v of %v healthy, %s: zone %s gets %.2f %%, want %.2f %%", round, healthy, all, settings, z, got[z], 100*want)
			}
		}
	}
}

func TestPriorityAndDrainCompose(t *testing.T) {
	req := sdktest.NewRequest("a", nil, slices.Concat(inZone("a", 2, 0), []abi.Endpoint{sdktest.Terminating("a", sdktest.Now-10_000)}, inZone("b", 2, 0))...)
	got, err := sdktest.Parts(req, sdktest.Native(t, lifecycle.New, `{"drain":{}}`), sdktest.Native(t, New, priority))
	for i, want := range []float64{.4, .4, .2, 0, 0} {
		if err != nil || math.Abs(got[i]-want) > 1e-6 {
			t.Errorf("endpoint %d gets %v, want %v, %v", i, got, want, err)
		}
	}
}

func TestBadGroupsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"mode":"priority","demand":"cpu"}`:                                         "demand: needs mode: capacity",
		`{"mode":"priority","demandByZone":{"a":1}}`:                                 "demandByZone: needs mode: capacity",
		`{"mode":"priority","minEndpointsPerZone":2}`:                                "minEndpointsPerZone: needs mode: capacity",
		`{"mode":"priority","by":"region"}`:                                          `by: "region" is none of zone, label:KEY, annotation:KEY and node-label:KEY`,
		`{"mode":"priority","by":"service-label:x"}`:                                 "by: ",
		`{"mode":"priority","by":"label:-"}`:                                         "by: the KEY of",
		`{"mode":"priority","by":"label:a\nlabel:b"}`:                                "by: the KEY of",
		`{"mode":"priority","by":"label:tier"}`:                                      "groups: 0 groups, want 1 to 16",
		`{"mode":"priority","groups":[]}`:                                            "groups: 0 groups",
		`{"mode":"priority","groups":[{"values":[]}]}`:                               "groups[0].values: 0 values, want 1 to 64",
		`{"mode":"priority","groups":[{"values":["a","a"]}]}`:                        `groups[0].values[1]: "a" is in another group or twice`,
		`{"mode":"priority","groups":[{"values":["@local"]},{"values":["@local"]}]}`: `groups[1].values[0]: "@local" is in another group`,
		`{"mode":"priority","groups":[{"values":["@locl"]}]}`:                        `groups[0].values[0]: "@locl" is no zone; the zone of this node is "@local"`,
		`{"mode":"priority","by":"label:tier","groups":[{"values":["@local"]}]}`:     `groups[0].values[0]: "@local" is the zone of this node, which needs by: zone`,
		`{"mode":"priority","by":"label:tier","groups":[{"values":["@web"]}]}`:       `groups[0].values[0]: "@web" is no label:tier`,
		`{"mode":"priority","groups":[{"value":"a"}]}`:                               `unknown field "value"`,
		`{"mode":"priority","overprovisioningPercent":99}`:                           "overprovisioningPercent: 99 is not 100 to 1000",
		`{"mode":"priority","hysteresisPercent":51}`:                                 "hysteresisPercent: 51",
		`{"mode":"priority","hold":"-1s"}`:                                           `hold: "-1s"`,
		`{"mode":"priority","tolerancePercent":1}`:                                   `unknown field "tolerancePercent"`,
		`{"mode":"priority","maxTotal":1000}`:                                        `unknown field "maxTotal"`,
	})
}
