package zonespill

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/plugins/outlier/outlier"
	"github.com/sluice-proxy/sluice/plugins/staged-drain/stageddrain"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// In both orders, a draining endpoint has the percentage of its stage of the weight of the ready endpoints in its zone. With
// the drain first, zones have the shares of the rule, with a draining endpoint counted as a fraction. With the drain last,
// ready endpoints keep the ratios of zone-spill.
func TestZoneSpillAndStagedDrainCompose(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	for round := range 500 {
		nodes := map[string]int{"a": 1 + rnd.IntN(9), "b": 1 + rnd.IntN(9), "c": 1 + rnd.IntN(9)}
		drainZone := string(rune('a' + rnd.IntN(3)))
		gone := time.Duration(rnd.IntN(40)) * time.Second
		percent := 0.0
		switch {
		case gone < 10*time.Second:
			percent = 100
		case gone < 20*time.Second:
			percent = 50
		case gone < 30*time.Second:
			percent = 10
		}
		var eps []abi.Endpoint
		var capacity []float64
		for _, z := range []string{"a", "b", "c"} {
			n := 2 + rnd.IntN(6)
			capacity = append(capacity, float64(n))
			eps = append(eps, sdktest.Repeat(n, sdktest.Ready(z))...)
		}
		ready := len(eps)
		leaving := 1 + rnd.IntN(2)
		eps = append(eps, sdktest.Repeat(leaving, sdktest.Terminating(drainZone, sdktest.Now-gone.Milliseconds()))...)
		drain := sdktest.Native(t, stageddrain.New, "")
		spill := sdktest.Native(t, New, `{"tolerancePercent":0,"maxTotal":6000}`)
		for order, chain := range map[string][]*sdk.NativePlugin{
			"drain, spill": {drain, spill}, "spill, drain": {spill, drain},
		} {
			req := sdktest.NewRequest("a", nodes, eps...)
			all := sdktest.MustRunChain(t, req, chain...)
			last := all[len(all)-1]
			peer := 0.0
			for i, a := range last.Results {
				if i < ready && req.Endpoints[i].Zone == drainZone {
					peer = float64(a.Weight)
				}
			}
			for i := ready; i < len(eps); i++ {
				if got, want := float64(last.Results[i].Weight), peer*percent/100; math.Abs(got-want) > .5 {
					t.Fatalf("round %d, %s: %v into the drain a draining endpoint of zone %s has %v, its peers %v; want %v",
						round, order, gone, drainZone, got, peer, want)
				}
			}
			want := sdktest.MustRunChain(t, sdktest.NewRequest("a", nodes, eps[:ready]...), spill)
			if order == "drain, spill" {
				capacity[drainZone[0]-'a'] += float64(leaving) * percent / 100
				for z := range capacity {
					got, want := share(req, last, string(rune('a'+z))), shareOf("a", nodes, capacity, z)
					if math.Abs(got-want) > .02 {
						t.Fatalf("round %d, %s: zone %c has a share of %.3f, want %.3f", round, order, 'a'+z, got, want)
					}
				}
				capacity[drainZone[0]-'a'] -= float64(leaving) * percent / 100
			}
			if order == "spill, drain" && !sameRatios(want[0], last, ready) {
				t.Fatalf("round %d: %v became %v", round, sdktest.Weights(want[0]), sdktest.Weights(last))
			}
		}
	}
}

// With outlier first, endpoints that do not answer are no capacity: their zone spills.
func TestEndpointsThatOutlierEjectsAreNoCapacity(t *testing.T) {
	eps := perZone(4, 4)
	for i := range eps {
		eps[i] = sdktest.Watched(eps[i], 10, 0, 0)
	}
	nodes := map[string]int{"a": 3, "b": 3}
	before := sdktest.MustRunChain(t, sdktest.NewRequest("a", nodes, eps...), sdktest.Native(t, outlier.New, ""), sdktest.Native(t, New, exact))
	eps[1] = sdktest.Watched(sdktest.Ready("a"), 0, 0, 10)
	req := sdktest.NewRequest("a", nodes, eps...)
	after := sdktest.MustRunChain(t, req, sdktest.Native(t, outlier.New, ""), sdktest.Native(t, New, exact))
	if got := share(req, before[1], "a"); got != 1 {
		t.Errorf("all answer: zone a keeps %.3f", got)
	}
	// 3 of 7 endpoints for half of the demand.
	if got := share(req, after[1], "a"); math.Abs(got-6./7) > .001 || after[1].Results[1].Weight != 0 {
		t.Errorf("one does not: zone a keeps %.3f, weights %v", got, sdktest.Weights(after[1]))
	}
}

func share(req *abi.Request, resp *abi.Response, zone string) float64 {
	in, all := 0.0, 0.0
	for i, a := range resp.Results {
		all += float64(a.Weight)
		if req.Endpoints[i].Zone == zone {
			in += float64(a.Weight)
		}
	}
	return in / all
}

// sameRatios reports whether the first n weights of b are those of a, scaled.
func sameRatios(a, b *abi.Response, n int) bool {
	scale := 0.0
	for i := range n {
		if a.Results[i].Weight == 0 {
			if b.Results[i].Weight != 0 {
				return false
			}
			continue
		}
		r := float64(b.Results[i].Weight) / float64(a.Results[i].Weight)
		if scale == 0 {
			scale = r
		}
		if r != scale {
			return false
		}
	}
	return true
}

// With the drain first, zone-spill counts a draining endpoint as a fraction: the zone has less capacity and spills more from
// stage to stage.
func TestDrainMakesItsZoneSpill(t *testing.T) {
	before := 2.0
	for _, gone := range []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second} {
		eps := append(sdktest.Repeat(2, sdktest.Ready("a")), sdktest.Repeat(2, sdktest.Terminating("a", sdktest.Now-gone.Milliseconds()))...)
		eps = append(eps, sdktest.Repeat(4, sdktest.Ready("b"))...)
		req := sdktest.NewRequest("a", map[string]int{"a": 3, "b": 3}, eps...)
		all := sdktest.MustRunChain(t, req, sdktest.Native(t, stageddrain.New, ""), sdktest.Native(t, New, ""))
		got := share(req, all[1], "a")
		if got >= before {
			t.Errorf("%v into the drain zone a keeps %.2f, before %.2f", gone, got, before)
		}
		before = got
	}
}
