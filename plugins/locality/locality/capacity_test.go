package locality

import (
	"math"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// exact are settings without hysteresis.
const exact = `{"minEndpointsPerZone":1,"hysteresisPercent":0}`

// perZone returns ready endpoints in zones a, b, c …, with a count for each zone.
func perZone(counts ...int) (eps []abi.Endpoint) {
	for i, n := range counts {
		eps = append(eps, sdktest.Repeat(n, sdktest.Ready(string(rune('a'+i))))...)
	}
	return eps
}

// byZone returns what each zone gets of the new connections with the last plugin's settings, in percent.
func byZone(t *testing.T, req *abi.Request, settings string, before ...*sdk.NativePlugin) map[string]float64 {
	t.Helper()
	return sdktest.ZonePercents(t, req, append(before, sdktest.Native(t, New, settings))...)
}

var even = map[string]int{"a": 4, "b": 4, "c": 4}

func TestTrafficStaysInItsZoneUpToItsCapacity(t *testing.T) {
	for name, tt := range map[string]struct {
		from   string
		nodes  map[string]int
		counts []int
		want   map[string]float64
	}{
		"as many everywhere":      {"a", even, []int{4, 4, 4}, map[string]float64{"a": 100}},
		"4/4/3, from a full zone": {"a", even, []int{4, 4, 3}, map[string]float64{"a": 100}},
		// Zone c has 3/11 of the endpoints and 1/3 of the demand: it keeps 9/11.
		"4/4/3, from the short zone": {"c", even, []int{4, 4, 3}, map[string]float64{"a": 9.1, "b": 9.1, "c": 81.8}},
		"half gone":                  {"a", even, []int{2, 4, 4}, map[string]float64{"a": 60, "b": 20, "c": 20}},
		"all gone":                   {"a", even, []int{0, 4, 4}, map[string]float64{"b": 50, "c": 50}},
		"all gone, one large":        {"a", even, []int{0, 8, 4}, map[string]float64{"b": 100, "c": 0}},
		"one zone":                   {"a", map[string]int{"a": 3}, []int{5}, map[string]float64{"a": 100}},
		"few nodes, many endpoints":  {"a", map[string]int{"a": 1, "b": 9}, []int{5, 5}, map[string]float64{"a": 100, "b": 0}},
		// 90 % of the demand, half of the endpoints: 5/9 stay.
		"many nodes, few endpoints": {"b", map[string]int{"a": 1, "b": 9}, []int{5, 5}, map[string]float64{"a": 44.4, "b": 55.6}},
		"a zone without nodes":      {"a", map[string]int{"a": 5, "b": 0}, []int{2, 2}, map[string]float64{"a": 50, "b": 50}},
		"from a zone without a row": {"z", map[string]int{"a": 5, "b": 5}, []int{2, 2}, map[string]float64{"a": 50, "b": 50}},
	} {
		t.Run(name, func(t *testing.T) {
			req := sdktest.NewRequest(tt.from, tt.nodes, perZone(tt.counts...)...)
			for z, got := range byZone(t, req, "") {
				if math.Abs(got-tt.want[z]) > .05 {
					t.Errorf("zone %s gets %.1f %%, want %.1f %%", z, got, tt.want[z])
				}
			}
		})
	}
}

func TestDemandByCPU(t *testing.T) {
	req := sdktest.NewRequest("a", map[string]int{"a": 1, "b": 1}, perZone(2, 2)...)
	req.Zones[0].MilliCPU, req.Zones[1].MilliCPU = 30_000, 10_000
	if got := byZone(t, req, `{"demand":"cpu"}`); math.Abs(got["a"]-66.7) > .1 {
		t.Errorf("%v, want 66.7 %% to zone a", got)
	}
	if got := byZone(t, req, `{"demand":"nodes"}`); math.Abs(got["a"]-100) > 1e-9 {
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
			got := byZone(t, req, settings)
			for _, z := range []string{"a", "b"} {
				if math.Abs(got[z]-shares[z]) > .05 {
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
	want := byZone(t, sdktest.NewRequest("a", even, perZone(2, 4, 4)...), exact) // only two in zone a: it keeps 60 %
	ejected := sdktest.Ready("a")
	for name, bad := range map[string]abi.Endpoint{"not ready": sdktest.NotReady("a"), "terminating": sdktest.Terminating("a", sdktest.Now), "ejected": ejected} {
		eps := append(perZone(2, 4, 4), bad, bad)
		req := sdktest.NewRequest("a", even, eps...)
		req.Endpoints[10].Capacity, req.Endpoints[11].Capacity = 0, 0
		if got := byZone(t, req, exact); math.Abs(got["a"]-want["a"]) > .1 {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
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
				if a.Value != tt.req.Endpoints[i].Share || !strings.Contains(a.Reason, tt.why) {
					t.Errorf("endpoint %d: share %d, %q; want its own, %q", i, a.Value, a.Reason, tt.why)
				}
			}
		})
	}
}

func TestLocalPoolIsUnchanged(t *testing.T) {
	req := sdktest.NewRequest("a", even, perZone(1, 3, 2)...)
	req.Pool = abi.PoolLocal
	for i, a := range sdktest.MustRun(t, New(), "", req).Results {
		if a.Value != abi.One || a.Reason != "" {
			t.Errorf("endpoint %d: %+v", i, a)
		}
	}
}

// Endpoints of a zone keep the ratio of their shares. Those that hints keep from this node count as any other.
func TestRatiosWithinAZoneAreKept(t *testing.T) {
	half := sdktest.Ready("a")
	left := sdktest.Ready("a")
	req := sdktest.NewRequest("a", even,
		sdktest.Ready("a"), half, sdktest.Terminating("a", sdktest.Now), sdktest.Terminating("a", sdktest.Now), sdktest.Unchosen("a"), left,
		sdktest.Ready("b"), sdktest.Ready("b"), sdktest.Unchosen("c"), sdktest.Unchosen("c"),
	)
	req.Endpoints[1].Share, req.Endpoints[2].Capacity, req.Endpoints[5].Share = 500_000, 500_000, 0
	parts, err := sdktest.Parts(req, sdktest.Native(t, New, exact))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{1, .5, .5, 0, 1, 0, 0, 0, 0, 0} {
		if got := parts[i] / parts[0]; math.Abs(got-want) > 1e-9 && i < 6 || i >= 6 && parts[i] > .1 {
			t.Errorf("endpoint %d gets %.3f of the first, want %.3f", i, got, want)
		}
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"demand":"pods"}`:                                 `demand: "pods" is neither "nodes" nor "cpu"`,
		`{"demand":"cpu","demandByZone":{"a":1}}`:           `demand: "cpu", but demandByZone is set too`,
		`{"demandByZone":{}}`:                               "demandByZone: no zone has demand",
		`{"demandByZone":{"a":0,"b":0}}`:                    "demandByZone: no zone has demand",
		`{"demandByZone":{"a":1,"b":-1}}`:                   "demandByZone.b: -1 is not 0 to 1000000",
		`{"demandByZone":{"a":1,"":1}}`:                     `demandByZone: the name of zone "" has not 1 to 63 bytes`,
		`{"demandByZone":{"a":1.5}}`:                        "demandByZone.a: want an integer, got 1.5",
		`{"demandByZone":["a"]}`:                            "demandByZone: want an object, got a list",
		`{"minEndpointsPerZone":0}`:                         "minEndpointsPerZone: 0 is not 1 to 1000",
		`{"mode":"zone"}`:                                   `mode: "zone" is neither "capacity" nor "priority"`,
		`{"by":"zone"}`:                                     "by: needs mode: priority",
		`{"groups":[]}`:                                     "groups: needs mode: priority",
		`{"mode":"capacity","overprovisioningPercent":140}`: "overprovisioningPercent: needs mode: priority",
		`{"hold":"1h1s"}`:                                   "hold: 1h1s is not 0s to 1h",
		`{"hysteresisPercent":51}`:                          "hysteresisPercent: 51 is not 0 to 50",
		`{"hold":"-1s"}`:                                    `hold: "-1s" is not a duration`,
		`{"tolerancePercent":1}`:                            `unknown field "tolerancePercent"`,
		`{"maxTotal":1000}`:                                 `unknown field "maxTotal"`,
		`{"minEndpoints":1}`:                                `unknown field "minEndpoints"`,
		`{"demand":"cpu"} {}`:                               "unexpected text after the JSON object",
		`{"demand":`:                                        "unexpected end",
		`demand`:                                            "invalid JSON at byte 1",
	})
}

func FuzzSettings(f *testing.F) {
	f.Add(exact)
	f.Add(`{"demand":"cpu","hold":"0s"}`)
	f.Add(`{"demandByZone":{"a":3,"b":1,"x":5}}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, settings string) {
		if New().Configure([]byte(settings)) != nil {
			return
		}
		byZone(t, sdktest.NewRequest("a", even, perZone(2, 3, 4)...), settings) // fails if there is no endpoint with a share
	})
}
