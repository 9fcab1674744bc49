package zonespill

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// exact are settings without tolerance or hysteresis, for comparison with exact shares.
const exact = `{"minEndpointsPerZone":1,"tolerancePercent":0,"hysteresisPercent":0,"maxTotal":65535}`

// perZone returns ready endpoints in zones a, b, c …, with a count for each zone.
func perZone(counts ...int) (eps []abi.Endpoint) {
	for i, n := range counts {
		eps = append(eps, sdktest.Repeat(n, sdktest.Ready(string(rune('a'+i))))...)
	}
	return eps
}

// byZone returns the share of each zone in percent.
func byZone(req *abi.Request, resp *abi.Response) map[string]float64 {
	sum, total := map[string]float64{}, 0.0
	for i, a := range resp.Results {
		sum[req.Endpoints[i].Zone] += float64(a.Weight)
		total += float64(a.Weight)
	}
	for z := range sum {
		sum[z] *= 100 / total
	}
	return sum
}

func total(resp *abi.Response) (sum int) {
	for _, a := range resp.Results {
		sum += int(a.Weight)
	}
	return sum
}

var even = map[string]int{"a": 4, "b": 4, "c": 4}

func TestTrafficStaysInItsZoneUpToItsCapacity(t *testing.T) {
	for name, tt := range map[string]struct {
		from   string
		nodes  map[string]int
		counts []int
		want   map[string]float64
		most   int // sum of weights
	}{
		"as many everywhere":      {"a", even, []int{4, 4, 4}, map[string]float64{"a": 100}, 4},
		"4/4/3, from a full zone": {"a", even, []int{4, 4, 3}, map[string]float64{"a": 100}, 4},
		// Zone c has 3/11 of the endpoints and 1/3 of the demand: it keeps 9/11.
		"4/4/3, from the short zone": {"c", even, []int{4, 4, 3}, map[string]float64{"a": 9.1, "b": 9.1, "c": 81.8}, 200},
		"half gone":                  {"a", even, []int{2, 4, 4}, map[string]float64{"a": 60, "b": 20, "c": 20}, 80},
		"all gone":                   {"a", even, []int{0, 4, 4}, map[string]float64{"b": 50, "c": 50}, 8},
		"all gone, one large":        {"a", even, []int{0, 8, 4}, map[string]float64{"b": 100, "c": 0}, 8},
		"one zone":                   {"a", map[string]int{"a": 3}, []int{5}, map[string]float64{"a": 100}, 5},
		"few nodes, many endpoints":  {"a", map[string]int{"a": 1, "b": 9}, []int{5, 5}, map[string]float64{"a": 100, "b": 0}, 5},
		// 90 % of the demand, half of the endpoints: 5/9 stay.
		"many nodes, few endpoints": {"b", map[string]int{"a": 1, "b": 9}, []int{5, 5}, map[string]float64{"a": 44.4, "b": 55.6}, 100},
		"a zone without nodes":      {"a", map[string]int{"a": 5, "b": 0}, []int{2, 2}, map[string]float64{"a": 50, "b": 50}, 4},
		"from a zone without a row": {"z", map[string]int{"a": 5, "b": 5}, []int{2, 2}, map[string]float64{"a": 50, "b": 50}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			req := sdktest.NewRequest(tt.from, tt.nodes, perZone(tt.counts...)...)
			resp := sdktest.MustRun(t, New(), "", req)
			for z, got := range byZone(req, resp) {
				if math.Abs(got-tt.want[z]) > 1.05 {
					t.Errorf("zone %s gets %.1f %%, want %.1f %%: %v", z, got, tt.want[z], sdktest.Weights(resp))
				}
			}
			if sum := total(resp); sum > tt.most {
				t.Errorf("weights sum up to %d, more than %d: %v", sum, tt.most, sdktest.Weights(resp))
			}
		})
	}
}

func TestDemandByCPU(t *testing.T) {
	req := sdktest.NewRequest("a", map[string]int{"a": 1, "b": 1}, perZone(2, 2)...)
	req.Zones[0].MilliCPU, req.Zones[1].MilliCPU = 30_000, 10_000
	resp := sdktest.MustRun(t, New(), `{"demand":"cpu"}`, req)
	if got := byZone(req, resp); math.Abs(got["a"]-66.7) > 1 {
		t.Errorf("%v, want 66.7 %% to zone a", got)
	}
	if got := byZone(req, sdktest.MustRun(t, New(), `{"demand":"nodes"}`, req)); got["a"] != 100 {
		t.Errorf("by nodes: %v, want all to zone a", got)
	}
}

// Settings replace Nodes and CPU where these mislead. Zones that they do not name have no demand.
func TestDemandFromSettings(t *testing.T) {
	nodes := map[string]int{"a": 1, "b": 9, "c": 5}                       // not what the settings say
	for settings, want := range map[string]map[string]map[string]float64{ // by zone of the node
		`{"demandByZone":{"a":3,"b":1}}`: {"a": {"a": 66.7, "b": 33.3}, "b": {"b": 100}},
		`{"demandByZone":{"a":1,"b":1}}`: {"a": {"a": 100}, "b": {"b": 100}},
		// Zone z has demand and no endpoint: half of the demand. What is left of a and b is theirs.
		`{"demandByZone":{"a":1,"b":1,"z":2}}`: {"a": {"a": 100}, "b": {"b": 100}, "z": {"a": 50, "b": 50}},
		`{"demandByZone":{"b":1}}`:             {"a": {"a": 100}, "b": {"a": 50, "b": 50}},
	} {
		for from, shares := range want {
			req := sdktest.NewRequest(from, nodes, perZone(4, 4)...)
			got := byZone(req, sdktest.MustRun(t, New(), settings, req))
			for _, z := range []string{"a", "b"} {
				if math.Abs(got[z]-shares[z]) > 1.05 {
					t.Errorf("%s, from zone %s: %v, want %v", settings, from, got, shares)
				}
			}
		}
	}
}

// With the demand in the settings, sluice need not read Nodes.
func TestNodesAreNeededOnlyToMeasureDemand(t *testing.T) {
	for settings, want := range map[string]sdk.Need{
		"": sdk.NeedNodes, `{"demand":"cpu"}`: sdk.NeedNodes, `{"demandByZone":{"a":1}}`: 0,
	} {
		p := New()
		if err := p.Configure([]byte(settings)); err != nil {
			t.Fatal(err)
		}
		if got := p.(sdk.Needer).Needs(); got != want {
			t.Errorf("%s: needs %b, want %b", settings, got, want)
		}
	}
}

// Endpoints that are not ready, or that outlier has ejected, are no capacity: their zone keeps less.
func TestEndpointsThatAreNotHealthyAreNoCapacity(t *testing.T) {
	want := byZoneOf(t, perZone(2, 4, 4)) // only two in zone a: it keeps 60 %
	ejected := sdktest.Ready("a")
	for name, bad := range map[string]abi.Endpoint{"not ready": sdktest.NotReady("a"), "terminating": sdktest.Terminating("a", sdktest.Now), "ejected": ejected} {
		eps := append(perZone(2, 4, 4), bad, bad)
		req := sdktest.NewRequest("a", even, eps...)
		req.Endpoints[10].Weight, req.Endpoints[11].Weight = 0, 0
		resp := sdktest.MustRun(t, New(), exact, req)
		if got := byZone(req, resp); math.Abs(got["a"]-want["a"]) > .1 || resp.Results[10].Weight != 0 || resp.Results[11].Weight != 0 {
			t.Errorf("%s: %v, want %v; weights %v", name, got, want, sdktest.Weights(resp))
		}
	}
}

func byZoneOf(t *testing.T, eps []abi.Endpoint) map[string]float64 {
	t.Helper()
	req := sdktest.NewRequest("a", even, eps...)
	return byZone(req, sdktest.MustRun(t, New(), exact, req))
}

func TestDefaultIsKeptWhenInputIsMissing(t *testing.T) {
	noZone := sdktest.Ready("")
	leaving := sdktest.Terminating("a", sdktest.Now)
	leaving.Conditions |= abi.Chosen
	for name, tt := range map[string]struct {
		req      *abi.Request
		settings string
		why      string
	}{
		"node":      {sdktest.NewRequest("", even, perZone(4, 4)...), "", "this node's zone is unknown"},
		"endpoint":  {sdktest.NewRequest("a", even, append(perZone(4, 4), noZone)...), "", "an endpoint's zone is unknown"},
		"demand":    {sdktest.NewRequest("a", nil, perZone(4, 4)...), "", "no zone has a Node"},
		"few":       {sdktest.NewRequest("a", even, perZone(4, 1, 0)...), "", "zone b has 1 ready, fewer than 2"},
		"not ready": {sdktest.NewRequest("a", even, leaving, leaving), "", "no endpoint is ready"},
		"cpu": {func() *abi.Request {
			r := sdktest.NewRequest("a", even, perZone(4, 4)...)
			r.Zones[1].MilliCPU = 0
			return r
		}(), `{"demand":"cpu"}`, "the CPU of zone b is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			resp := sdktest.MustRun(t, New(), tt.settings, tt.req)
			for i, a := range resp.Results {
				if uint32(a.Weight) != tt.req.Endpoints[i].Weight || !strings.Contains(a.Reason, tt.why) {
					t.Errorf("endpoint %d: weight %d, %q; want its own, %q", i, a.Weight, a.Reason, tt.why)
				}
			}
		})
	}
}

func TestLocalPoolIsUnchanged(t *testing.T) {
	req := sdktest.NewRequest("a", even, perZone(1, 3, 2)...)
	req.Pool = abi.PoolLocal
	for i, a := range sdktest.MustRun(t, New(), "", req).Results {
		if a.Weight != 1 || a.Reason != "" {
			t.Errorf("endpoint %d: %+v", i, a)
		}
	}
}

func TestWeightRatiosWithinAZoneAreKept(t *testing.T) {
	weigh := func(e abi.Endpoint, w uint32) abi.Endpoint { e.Weight = w; return e }
	draining := weigh(sdktest.Terminating("a", sdktest.Now), 50)
	left := sdktest.Ready("a")
	req := sdktest.NewRequest("a", even,
		weigh(sdktest.Ready("a"), 100), weigh(sdktest.Ready("a"), 100), draining,
		sdktest.Terminating("a", sdktest.Now), // no weight left
		sdktest.Unchosen("a"),                 // not chosen by the default rules: counts as the largest
		left,                                  // chosen, but a previous plugin set its weight to 0
		weigh(sdktest.Ready("b"), 100), weigh(sdktest.Ready("b"), 100), sdktest.Unchosen("c"), sdktest.Unchosen("c"),
	)
	req.Endpoints[5].Weight = 0
	resp := sdktest.MustRun(t, New(), `{}`, req)
	if got, want := sdktest.Weights(resp), []int{2, 2, 1, 0, 2, 0, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("weights %v, want %v", got, want)
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"demand":"pods"}`:                       `demand: "pods" is neither "nodes" nor "cpu"`,
		`{"demand":"cpu","demandByZone":{"a":1}}`: `demand: "cpu", but demandByZone is set too`,
		`{"demandByZone":{}}`:                     "demandByZone: no zone has demand",
		`{"demandByZone":{"a":0,"b":0}}`:          "demandByZone: no zone has demand",
		`{"demandByZone":{"a":1,"b":-1}}`:         "demandByZone.b: -1 is not 0 to 1000000",
		`{"demandByZone":{"a":1,"":1}}`:           `demandByZone: the name of zone "" has not 1 to 63 bytes`,
		`{"demandByZone":{"a":1.5}}`:              "demandByZone.a: want an integer, got 1.5",
		`{"demandByZone":["a"]}`:                  "demandByZone: want an object, got a list",
		`{"minEndpointsPerZone":0}`:               "minEndpointsPerZone: 0 is not 1 to 1000",
		`{"hysteresisPercent":51}`:                "hysteresisPercent: 51 is not 0 to 50",
		`{"holdSeconds":-1}`:                      "holdSeconds: -1 is not 0 to 3600",
		`{"tolerancePercent":21}`:                 "tolerancePercent: 21 is not 0 to 20",
		`{"maxTotal":65536}`:                      "maxTotal: 65536 is not 1 to 65535",
		`{"maxTotal":"many"}`:                     "maxTotal: want an integer, got a string",
		`{"minEndpoints":1}`:                      `unknown field "minEndpoints"`,
		`{"demand":"cpu"} {}`:                     "unexpected text after the JSON object",
		`{"demand":`:                              "unexpected end",
		`demand`:                                  "invalid JSON at byte 1",
	})
}

func FuzzSettings(f *testing.F) {
	f.Add(exact)
	f.Add(`{"demand":"cpu","holdSeconds":0}`)
	f.Add(`{"demandByZone":{"a":3,"b":1,"x":5}}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, settings string) {
		if New().Configure([]byte(settings)) != nil {
			return
		}
		resp := sdktest.MustRun(t, New(), settings, sdktest.NewRequest("a", even, perZone(2, 3, 4)...))
		if total(resp) == 0 {
			t.Errorf("%s: no endpoint has weight", settings)
		}
	})
}
