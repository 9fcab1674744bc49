package failover

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/staged-drain/stageddrain"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// zone returns endpoints of a zone.
func zone(name string, healthy, unhealthy int) []abi.Endpoint {
	return append(sdktest.Repeat(healthy, sdktest.Ready(name)), sdktest.Repeat(unhealthy, sdktest.NotReady(name))...)
}

// percent returns the share of each zone in percent.
func percent(req *abi.Request, resp *abi.Response) map[string]float64 {
	sum, total := map[string]float64{}, 0.0
	for i, a := range resp.Results {
		if req.Endpoints[i].Conditions&abi.Eligible != 0 {
			sum[req.Endpoints[i].Zone] += float64(a.Weight)
			total += float64(a.Weight)
		}
	}
	for z := range sum {
		sum[z] *= 100 / total
	}
	return sum
}

const inOrder = `{"groups":[{"values":["a"]},{"values":["b"]},{"values":["c"]}]}`

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
			eps = append(eps, zone(string(rune('a'+i)), h, 100-h)...)
		}
		req := sdktest.NewRequest("z", nil, eps...)
		got := percent(req, sdktest.MustRun(t, New(), `{"tolerancePercent":0,"maxTotal":65535,`+inOrder[1:], req))
		for i, want := range tt.want {
			if z := string(rune('a' + i)); math.Abs(got[z]-want) > .5 {
				t.Errorf("%v %% healthy: %v, want %v", tt.healthy, got, tt.want)
			}
		}
	}
}

// Without settings: this node's zone first.
func TestZoneOfTheNodeIsFirst(t *testing.T) {
	req := sdktest.NewRequest("b", nil, slices.Concat(zone("a", 2, 0), zone("b", 1, 1), zone("c", 2, 0))...)
	resp := sdktest.MustRun(t, New(), "", req)
	if got := percent(req, resp); math.Abs(got["b"]-70) > 1 || math.Abs(got["a"]-15) > 1 {
		t.Errorf("%v", got)
	}
	for i, want := range []string{"group 2 of 2 (others): 31 %", "", "group 1 of 2 (this zone): 69 %", ""} {
		if got := resp.Results[i].Reason; want != "" && got != want {
			t.Errorf("endpoint %d: %q, want %q", i, got, want)
		}
	}
	if req.Zone = ""; !slices.Equal(sdktest.Weights(sdktest.MustRun(t, New(), "", req)), []int{1, 1, 1, 0, 1, 1}) {
		t.Error("weights change although the zone of the node is unknown")
	}
	// An order of zones, the same on every node, but with the own zone first.
	req.Zone = "c"
	if got := percent(req, sdktest.MustRun(t, New(), `{"groups":[{"values":["@local"]},{"values":["a"]},{"values":["b","c"]}]}`, req)); got["c"] != 100 {
		t.Errorf("%v, want all to zone c", got)
	}
}

func TestGroupsByLabelOrAnnotation(t *testing.T) {
	for _, by := range []string{"label:example.com/tier", "annotation:tier"} {
		with := func(e abi.Endpoint, values ...string) abi.Endpoint { e.Values = sdktest.Values(values...); return e }
		req := sdktest.NewRequest("a", nil, with(sdktest.Ready("a"), "backup"), with(sdktest.Ready("b"), "main"), with(sdktest.NotReady("a"), "main"),
			with(sdktest.Ready("a"), ""), with(sdktest.Ready("a")))
		req.Keys = []string{by}
		settings := `{"by":"` + by + `","groups":[{"values":["main"]},{"values":["backup"]}],"maxTotal":10000,"tolerancePercent":0}`
		if got := sdktest.Weights(sdktest.MustRun(t, New(), settings, req)); !slices.Equal(got, []int{3, 7, 0, 0, 0}) {
			t.Errorf("%s: weights %v", by, got)
		}
	}
}

func TestWeightsOfPreviousPluginsAreRespected(t *testing.T) {
	weigh := func(e abi.Endpoint, w uint32) abi.Endpoint { e.Weight = w; return e }
	ejected := weigh(sdktest.Ready("a"), 1)
	req := sdktest.NewRequest("a", nil, ejected, weigh(sdktest.Ready("a"), 4), weigh(sdktest.Ready("a"), 2), weigh(sdktest.Terminating("a", sdktest.Now), 2),
		sdktest.Unchosen("b"), weigh(sdktest.Ready("b"), 2))
	req.Endpoints[0].Weight = 0 // a previous plugin has ejected it: 2 of 3 of the group are healthy
	resp := sdktest.MustRun(t, New(), `{"tolerancePercent":0,"maxTotal":65535}`, req)
	w := sdktest.Weights(resp)
	if w[0] != 0 || w[1] != 2*w[2] || w[3] != w[2] || w[4] != 2*w[5] || w[5] == 0 {
		t.Errorf("weights %v", w)
	}
	if got := percent(req, resp)["a"]; math.Abs(got-93.3) > .2 {
		t.Errorf("%.1f %% to zone a", got)
	}
}

func TestWeightsAreKeptWhenNothingIsHealthy(t *testing.T) {
	held := sdktest.Held("a")
	held.Weight = 3
	leaving := sdktest.Terminating("b", sdktest.Now)
	leaving.Weight = 2
	req := sdktest.NewRequest("a", nil, held, leaving, sdktest.NotReady("b"))
	req.State = []byte{1, 2, 3}
	resp := sdktest.MustRun(t, New(), "", req)
	if got := sdktest.Weights(resp); !slices.Equal(got, []int{3, 2, 0}) || !slices.Equal(resp.State, req.State) {
		t.Errorf("weights %v, state %v", got, resp.State)
	}
}

// A scale-down of a group is no failure.
func TestTerminatingEndpointsDoNotCount(t *testing.T) {
	req := sdktest.NewRequest("a", nil, slices.Concat(zone("a", 2, 0), sdktest.Repeat(6, sdktest.Terminating("a", sdktest.Now)), zone("b", 3, 0))...)
	if got := percent(req, sdktest.MustRun(t, New(), "", req)); got["a"] != 100 {
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
			eps = append(eps, zone(string(rune('a'+i)), h, u)...)
			groups = append(groups, `{"values":["`+string(rune('a'+i))+`"]}`)
			some = some || h > 0
		}
		if !some {
			continue
		}
		over := 100 + rnd.IntN(100)
		settings := `{"groups":[` + strings.Join(groups[:max(1, n-1)], ",") + `],"overprovisioningPercent":` + strconv.Itoa(over) + `,"tolerancePercent":0,"maxTotal":65535}`
		rnd.Shuffle(len(eps), func(i, j int) { eps[i], eps[j] = eps[j], eps[i] })
		req := sdktest.NewRequest("z", nil, eps...)
		resp := sdktest.MustRun(t, New(), settings, req)
		got := percent(req, resp)
		for i, want := range shares(healthy, all, float64(over)/100) {
			if z := string(rune('a' + i)); math.Abs(got[z]-100*want) > .7 {
				t.Fatalf("round %d: %v of %v healthy, %s: zone %s gets %.2f %%, want %.2f %%", round, healthy, all, settings, z, got[z], 100*want)
			}
		}
		for i, a := range resp.Results {
			if ready := req.Endpoints[i].Weight > 0; !ready && a.Weight > 0 {
				t.Fatalf("round %d: endpoint %d gets weight", round, i)
			}
		}
	}
}

func TestFailoverAndStagedDrainCompose(t *testing.T) {
	req := sdktest.NewRequest("a", nil, slices.Concat(zone("a", 2, 0), []abi.Endpoint{sdktest.Terminating("a", sdktest.Now-10_000)}, zone("b", 2, 0))...)
	all := sdktest.MustRunChain(t, req, sdktest.Native(t, stageddrain.New, ""), sdktest.Native(t, New, ""))
	if got := sdktest.Weights(all[1]); !slices.Equal(got, []int{2, 2, 1, 0, 0}) {
		t.Errorf("weights %v", got)
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"by":"region"}`:                   `by: "region" is neither "zone" nor label:KEY nor annotation:KEY`,
		`{"by":"service-label:x"}`:          "by: ",
		`{"by":"label:-"}`:                  "by: the KEY of",
		`{"by":"label:a\nlabel:b"}`:         "by: the KEY of",
		`{"by":"label:tier"}`:               "groups: 0 groups, want 1 to 16",
		`{"groups":[]}`:                     "groups: 0 groups",
		`{"groups":[{"values":[]}]}`:        "groups[0].values: 0 values, want 1 to 64",
		`{"groups":[{"values":["a","a"]}]}`: `groups[0].values[1]: "a" is in another group or twice`,
		`{"groups":[{"values":["@local"]},{"values":["@local"]}]}`: `groups[1].values[0]: "@local" is in another group`,
		`{"groups":[{"values":["@locl"]}]}`:                        `groups[0].values[0]: "@locl" is no zone; the zone of this node is "@local"`,
		`{"by":"label:tier","groups":[{"values":["@local"]}]}`:     `groups[0].values[0]: "@local" is the zone of this node, which needs by: zone`,
		`{"by":"label:tier","groups":[{"values":["@web"]}]}`:       `groups[0].values[0]: "@web" is no label:tier`,
		`{"groups":[{"value":"a"}]}`:                               `unknown field "value"`,
		`{"overprovisioningPercent":99}`:                           "overprovisioningPercent: 99 is not 100 to 1000",
		`{"hysteresisPercent":51}`:                                 "hysteresisPercent: 51",
		`{"holdSeconds":-1}`:                                       "holdSeconds: -1",
		`{"tolerancePercent":21}`:                                  "tolerancePercent: 21",
		`{"maxTotal":0}`:                                           "maxTotal: 0",
	})
}
