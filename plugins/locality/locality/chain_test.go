package locality

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/plugins/canary/canary"
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/plugins/outlier/outlier"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// parts runs a chain, and returns what each endpoint gets.
func parts(t *testing.T, req *abi.Request, chain ...*sdk.NativePlugin) []float64 {
	t.Helper()
	all, err := sdktest.Parts(req, chain...)
	if err != nil || all == nil {
		t.Fatalf("parts %v, %v", all, err)
	}
	return all
}

// A draining endpoint has the percentage of its stage of what its peers get, and counts as this fraction of an endpoint of its
// zone.
func TestDrainAndCapacityCompose(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	for round := range 500 {
		nodes := map[string]int{"a": 1 + rnd.IntN(9), "b": 1 + rnd.IntN(9), "c": 1 + rnd.IntN(9)}
		drainZone := rnd.IntN(3)
		gone := time.Duration(rnd.IntN(40)) * time.Second
		percent := []float64{1, .5, .1, 0}[gone/(10*time.Second)]
		var eps []abi.Endpoint
		var capacity []float64
		for z := range 3 {
			n := 2 + rnd.IntN(6)
			capacity = append(capacity, float64(n))
			eps = append(eps, sdktest.Repeat(n, sdktest.Ready(string(rune('a'+z))))...)
		}
		ready, leaving := len(eps), 1+rnd.IntN(2)
		eps = append(eps, sdktest.Repeat(leaving, sdktest.Terminating(string(rune('a'+drainZone)), sdktest.Now-gone.Milliseconds()))...)
		req := sdktest.NewRequest("a", nodes, eps...)
		got := parts(t, req, sdktest.Native(t, lifecycle.New, `{"drain":{}}`), sdktest.Native(t, New, exact))
		capacity[drainZone] += float64(leaving) * percent
		var zones [3]float64
		peer := 0.0
		for i, e := range req.Endpoints {
			if zones[e.Zone[0]-'a'] += got[i]; i < ready && int(e.Zone[0]-'a') == drainZone {
				peer = got[i]
			}
		}
		for i := ready; i < len(eps); i++ {
			if math.Abs(got[i]-peer*percent) > 1e-6 {
				t.Fatalf("round %d: %v into the drain an endpoint gets %v, its peers %v", round, gone, got[i], peer)
			}
		}
		for z := range capacity {
			if want := shareOf("a", nodes, capacity, z); math.Abs(zones[z]-want) > 1e-4 {
				t.Fatalf("round %d: zone %c gets %.4f, want %.4f", round, 'a'+z, zones[z], want)
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
	if got := byZone(t, sdktest.NewRequest("a", nodes, eps...), exact, sdktest.Native(t, outlier.New, "")); math.Abs(got["a"]-100) > 1e-9 {
		t.Errorf("all answer: %v", got)
	}
	eps[1] = sdktest.Watched(sdktest.Ready("a"), 0, 0, 10)
	// 3 of 7 endpoints for half of the demand.
	if got := byZone(t, sdktest.NewRequest("a", nodes, eps...), exact, sdktest.Native(t, outlier.New, "")); math.Abs(got["a"]-600./7) > .01 {
		t.Errorf("one does not: %v", got)
	}
}

// A zone with a draining endpoint has less capacity and spills more from stage to stage.
func TestDrainMakesItsZoneSpill(t *testing.T) {
	before := 200.
	for _, gone := range []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second} {
		eps := append(sdktest.Repeat(2, sdktest.Ready("a")), sdktest.Repeat(2, sdktest.Terminating("a", sdktest.Now-gone.Milliseconds()))...)
		eps = append(eps, sdktest.Repeat(4, sdktest.Ready("b"))...)
		req := sdktest.NewRequest("a", map[string]int{"a": 3, "b": 3}, eps...)
		got := byZone(t, req, "", sdktest.Native(t, lifecycle.New, `{"drain":{}}`))["a"]
		if got >= before {
			t.Errorf("%v into the drain zone a keeps %.2f, before %.2f", gone, got, before)
		}
		before = got
	}
}

// The nodes of the cluster together give a canary of one endpoint its 1 %, whatever zone they and it are in, and every other
// endpoint the same. A single number for both decisions gave it 0.34 % of the cluster, and its neighbours 1.48 times their part.
func TestCanaryPercentIsThatOfTheCluster(t *testing.T) {
	nodes := map[string]int{"a": 3, "b": 3, "c": 3}
	eps := perZone(4, 4, 4)
	eps[0].Values = sdktest.Values("canary")
	total := make([]float64, len(eps))
	for zone, n := range nodes {
		req := sdktest.NewRequest(zone, nodes, eps...)
		req.Keys = []string{sdk.PodLabel("track")}
		got := parts(t, req, sdktest.Native(t, canary.New, `{"groups":[{"value":"canary","percent":1}]}`), sdktest.Native(t, New, ""))
		for i, part := range got {
			total[i] += part * float64(n) / 9
		}
	}
	for i, got := range total {
		want := .99 / 11
		if i == 0 {
			want = .01
		}
		if math.Abs(got/want-1) > .001 {
			t.Errorf("endpoint %d gets %.3f %% of the cluster, want %.3f %%", i, 100*got, 100*want)
		}
	}
}

// While an endpoint warms up, its zone spills; when it is warm, nothing of that is left, as if the host had just started.
func TestNothingSpillsWhenEndpointsAreWarm(t *testing.T) {
	for _, warms := range []time.Duration{0, 30 * time.Second, 54 * time.Second} {
		eps := perZone(10, 10)
		for i := range 2 {
			eps[i].ReadySince = sdktest.Now - warms.Milliseconds()
		}
		slow := sdktest.Native(t, lifecycle.New, `{"warm":{}}`)
		s := newSession(t, "")
		nodes, last := map[string]int{"a": 1, "b": 1}, 0.0
		for now := int64(sdktest.Now); now <= sdktest.Now+120_000; {
			req := sdktest.NewRequest("a", nodes, eps...)
			req.Now = now
			before := sdktest.MustRunChain(t, req, slow)[0]
			req.Apply(abi.RoleReduce, abi.AnswerOf(before))
			s.Now = now
			resp := s.decide(req)
			after := *req
			after.Endpoints = slices.Clone(req.Endpoints)
			after.Apply(abi.RoleLocality, abi.AnswerOf(resp))
			keeps := 0.0
			for _, part := range after.Parts(nil)[:10] {
				keeps += part
			}
			if keeps < last-1e-6 {
				t.Errorf("zone a keeps %.4f after %.4f while its endpoints warm up", keeps, last)
			}
			last = keeps
			wait := before.RequeueAfter
			if wait == 0 || resp.RequeueAfter > 0 && resp.RequeueAfter < wait {
				wait = resp.RequeueAfter
			}
			if wait == 0 {
				break
			}
			now += wait.Milliseconds()
		}
		if math.Abs(last-1) > 1e-6 {
			t.Errorf("ready for %v at first: in the end zone a keeps %.4f", warms, last)
		}
	}
}
