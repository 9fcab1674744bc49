package zonespill

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// exact are settings without any slack, to compare with exact shares.
const exact = `{"minEndpointsPerZone":1,"tolerancePercent":0,"hysteresisPercent":0,"maxTotal":65535}`

func run(t *testing.T, settings string, req *abi.Request) *abi.Response {
	t.Helper()
	resp, err := sdktest.Run(New(), settings, req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// perZone is so many ready endpoints in zones a, b, c ….
func perZone(counts ...int) (eps []abi.Endpoint) {
	for i, n := range counts {
		eps = append(eps, sdktest.Times(n, sdktest.Ready(string(rune('a'+i))))...)
	}
	return eps
}

// byZone adds up weights by zone, in percent of all.
func byZone(req *abi.Request, resp *abi.Response) map[string]float64 {
	sum, total := map[string]float64{}, 0.0
	for i, a := range resp.Answers {
		sum[req.Endpoints[i].Zone] += float64(a.Weight)
		total += float64(a.Weight)
	}
	for z := range sum {
		sum[z] *= 100 / total
	}
	return sum
}

func total(resp *abi.Response) (sum int) {
	for _, a := range resp.Answers {
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
			req := sdktest.Request(tt.from, tt.nodes, perZone(tt.counts...)...)
			resp := run(t, "", req)
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

func TestDemandMayBeCPU(t *testing.T) {
	req := sdktest.Request("a", map[string]int{"a": 1, "b": 1}, perZone(2, 2)...)
	req.Zones[0].MilliCPU, req.Zones[1].MilliCPU = 30_000, 10_000
	resp := run(t, `{"demand":"cpu"}`, req)
	if got := byZone(req, resp); math.Abs(got["a"]-66.7) > 1 {
		t.Errorf("%v, want 66.7 %% to zone a", got)
	}
	if got := byZone(req, run(t, `{"demand":"nodes"}`, req)); got["a"] != 100 {
		t.Errorf("by nodes: %v, want all to zone a", got)
	}
}

func TestTheDefaultIsKeptWhenItIsUnknownWhatIsBest(t *testing.T) {
	noZone := sdktest.Ready("")
	leaving := sdktest.Terminating("a", sdktest.Now)
	leaving.Conditions |= abi.Chosen
	for name, tt := range map[string]struct {
		req      *abi.Request
		settings string
		why      string
	}{
		"node":      {sdktest.Request("", even, perZone(4, 4)...), "", "this node's zone is unknown"},
		"endpoint":  {sdktest.Request("a", even, append(perZone(4, 4), noZone)...), "", "an endpoint's zone is unknown"},
		"demand":    {sdktest.Request("a", nil, perZone(4, 4)...), "", "no zone has a Node"},
		"few":       {sdktest.Request("a", even, perZone(4, 1, 0)...), "", "zone b has 1 ready, fewer than 2"},
		"not ready": {sdktest.Request("a", even, leaving, leaving), "", "no endpoint is ready"},
		"cpu": {func() *abi.Request {
			r := sdktest.Request("a", even, perZone(4, 4)...)
			r.Zones[1].MilliCPU = 0
			return r
		}(), `{"demand":"cpu"}`, "the CPU of zone b is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			resp := run(t, tt.settings, tt.req)
			for i, a := range resp.Answers {
				if uint32(a.Weight) != tt.req.Endpoints[i].Weight || !strings.Contains(a.Reason, tt.why) {
					t.Errorf("endpoint %d: weight %d, %q; want its own, %q", i, a.Weight, a.Reason, tt.why)
				}
			}
		})
	}
}

func TestTheLocalPoolStaysAsItIs(t *testing.T) {
	req := sdktest.Request("a", even, perZone(1, 3, 2)...)
	req.Pool = abi.PoolLocal
	for i, a := range run(t, "", req).Answers {
		if a.Weight != 1 || a.Reason != "" {
			t.Errorf("endpoint %d: %+v", i, a)
		}
	}
}

func TestWeightsOfTheChainKeepTheirRatiosInAZone(t *testing.T) {
	weigh := func(e abi.Endpoint, w uint32) abi.Endpoint { e.Weight = w; return e }
	draining := weigh(sdktest.Terminating("a", sdktest.Now), 50)
	left := sdktest.Ready("a")
	req := sdktest.Request("a", even,
		weigh(sdktest.Ready("a"), 100), weigh(sdktest.Ready("a"), 100), draining,
		sdktest.Terminating("a", sdktest.Now), // no weight left
		sdktest.Unchosen("a"),                 // passed over by the default rules: as the largest
		left,                                  // chosen, but a plugin before took its weight
		weigh(sdktest.Ready("b"), 100), weigh(sdktest.Ready("b"), 100), sdktest.Unchosen("c"), sdktest.Unchosen("c"),
	)
	req.Endpoints[5].Weight = 0
	resp := run(t, `{}`, req)
	if got, want := sdktest.Weights(resp), []int{2, 2, 1, 0, 2, 0, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("weights %v, want %v", got, want)
	}
}

// cluster is a random cluster of up to 6 zones.
func cluster(rnd *rand.Rand, least int) (map[string]int, []int) {
	nodes, counts := map[string]int{}, []int{}
	for i := range 1 + rnd.IntN(6) {
		nodes[string(rune('a'+i))] = 1 + rnd.IntN(20)
		counts = append(counts, least+rnd.IntN(15))
	}
	if slices.Max(counts) == 0 {
		counts[0] = 1
	}
	return nodes, counts
}

// load adds up what reaches each endpoint when every zone's nodes follow their answers, each node sending 1.
func load(t *testing.T, settings string, nodes map[string]int, counts []int) []float64 {
	t.Helper()
	var sum []float64
	for zone, n := range nodes {
		req := sdktest.Request(zone, nodes, perZone(counts...)...)
		resp := run(t, settings, req)
		if sum == nil {
			sum = make([]float64, len(resp.Answers))
		}
		all := float64(total(resp))
		for i, a := range resp.Answers {
			sum[i] += float64(n) * float64(a.Weight) / all
		}
	}
	return sum
}

func TestWhenEveryNodeAnswersSoTheLoadIsEven(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 300 {
		nodes, counts := cluster(rnd, 0)
		endpoints, all := 0, 0
		for _, n := range counts {
			endpoints += n
		}
		for _, n := range nodes {
			all += n
		}
		for settings, slack := range map[string]float64{
			exact: .004, `{"minEndpointsPerZone":1,"hysteresisPercent":0}`: .0101,
		} {
			got := load(t, settings, nodes, counts)
			// slack is of one zone's demand; what all zones' rounding can add up to is that of all demand.
			at := 0
			for z, n := range counts {
				for range n {
					off := math.Abs(got[at]*float64(n) - float64(all)*float64(n)/float64(endpoints))
					if off > slack*float64(all) {
						t.Fatalf("round %d: nodes %v, endpoints %v, %s:\nan endpoint of zone %d gets %.3f, the mean is %.3f",
							round, nodes, counts, settings, z, got[at], float64(all)/float64(endpoints))
					}
					at++
				}
			}
		}
	}
}

func floats(counts []int) (f []float64) {
	for _, n := range counts {
		f = append(f, float64(n))
	}
	return f
}

// shareOf is a second implementation of the rule, in floating point and straight from its sentence.
func shareOf(from string, nodes map[string]int, counts []float64, zone int) float64 {
	demand, capacity := 0.0, 0.0
	for _, n := range nodes {
		demand += float64(n)
	}
	for _, n := range counts {
		capacity += n
	}
	e := func(z int) float64 { return counts[z] / capacity }
	d := func(z int) float64 { return float64(nodes[string(rune('a'+z))]) / demand }
	mine := int(from[0] - 'a')
	local := min(1, e(mine)/d(mine))
	if zone == mine {
		return local
	}
	spare := 0.0
	for z := range counts {
		spare += max(0, e(z)-d(z))
	}
	if local >= 1 || spare < 1e-9 {
		return 0
	}
	return (1 - local) * max(0, e(zone)-d(zone)) / spare
}

func TestSharesFollowTheRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		nodes, counts := cluster(rnd, 0)
		req := sdktest.Request("a", nodes, perZone(counts...)...)
		got := byZone(req, run(t, exact, req))
		for z := range counts {
			want := 100 * shareOf("a", nodes, floats(counts), z)
			if math.Abs(got[string(rune('a'+z))]-want) > .8 {
				t.Fatalf("nodes %v, endpoints %v: zone %c gets %.2f %%, want %.2f %%", nodes, counts, 'a'+z, got[string(rune('a'+z))], want)
			}
		}
	}
}

func TestWeightsStaySmallAndWithinTheirTolerance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 1000 {
		nodes, counts := cluster(rnd, 2)
		req := sdktest.Request("a", nodes, perZone(counts...)...)
		resp := run(t, "", req)
		if sum := total(resp); sum > 1000 {
			t.Fatalf("nodes %v, endpoints %v: weights sum up to %d", nodes, counts, sum)
		}
		got := byZone(req, resp)
		for z := range counts {
			if want := 100 * shareOf("a", nodes, floats(counts), z); math.Abs(got[string(rune('a'+z))]-want) > 1.001 && len(resp.Answers) <= 20 {
				t.Fatalf("nodes %v, endpoints %v: zone %c gets %.2f %%, want %.2f %%", nodes, counts, 'a'+z, got[string(rune('a'+z))], want)
			}
		}
	}
}

func TestAThousandEndpointsGetWhatADataPlaneCanHold(t *testing.T) {
	for _, counts := range [][]int{{300, 350, 350}, {500, 500, 500}, {3000, 1, 1}} {
		req := sdktest.Request("a", even, perZone(counts...)...)
		resp := run(t, `{"minEndpointsPerZone":1}`, req)
		if sum := total(resp); sum > max(1000, len(resp.Answers)) || sum == 0 {
			t.Errorf("%v: weights sum up to %d", counts, sum)
		}
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	for settings, want := range map[string]string{
		`{"demand":"pods"}`:         `demand: "pods" is neither "nodes" nor "cpu"`,
		`{"minEndpointsPerZone":0}`: "minEndpointsPerZone: 0 is not 1 to 1000",
		`{"hysteresisPercent":51}`:  "hysteresisPercent: 51 is not 0 to 50",
		`{"holdSeconds":-1}`:        "holdSeconds: -1 is not 0 to 3600",
		`{"tolerancePercent":21}`:   "tolerancePercent: 21 is not 0 to 20",
		`{"maxTotal":65536}`:        "maxTotal: 65536 is not 1 to 65535",
		`{"maxTotal":"many"}`:       "maxTotal: a JSON string is not a int64",
		`{"minEndpoints":1}`:        `unknown field "minEndpoints"`,
		`{"demand":"cpu"} {}`:       "more text after the object",
		`{"demand":`:                "ends too early",
		`demand`:                    "not JSON at byte 1",
	} {
		if err := New().Configure([]byte(settings)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add(exact)
	f.Add(`{"demand":"cpu","holdSeconds":0}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, settings string) {
		if New().Configure([]byte(settings)) != nil {
			return
		}
		resp := run(t, settings, sdktest.Request("a", even, perZone(2, 3, 4)...))
		if total(resp) == 0 {
			t.Errorf("%s: no endpoint has weight", settings)
		}
	})
}

// ask keeps a plugin and its state, as a host does.
type ask struct {
	t     *testing.T
	p     *sdk.NativePlugin
	state []byte
	now   int64
}

func newAsk(t *testing.T, settings string) *ask {
	t.Helper()
	p, err := sdk.Native(New, []byte(settings))
	if err != nil {
		t.Fatal(err)
	}
	return &ask{t: t, p: p, now: sdktest.Now}
}

// decide asks, and asks again at once: the same question has to get the same answer, however often it is put.
func (a *ask) decide(req *abi.Request) *abi.Response {
	a.t.Helper()
	req.Now = a.now
	var first, again abi.Response
	for _, resp := range []*abi.Response{&first, &again} {
		req.State = a.state
		if err := a.p.DecideLoudly(req, resp); err != nil {
			a.t.Fatal(err)
		}
		a.state = slices.Clone(resp.State)
	}
	if fmt.Sprint(first) != fmt.Sprint(again) {
		a.t.Fatalf("asked twice, answered\n%+v\n%+v", first, again)
	}
	return &again
}

func TestARolloutChangesNobodysWeight(t *testing.T) {
	a := newAsk(t, "")
	weights := func(counts ...int) []int {
		return sdktest.Weights(a.decide(sdktest.Request("a", even, perZone(counts...)...)))
	}
	start := weights(6, 8, 8)
	if start[0] == start[7] || start[7] == 0 {
		t.Fatalf("weights %v: zone a should keep most of its connections, not all", start)
	}
	for _, counts := range [][]int{{6, 9, 8}, {6, 8, 9}, {6, 8, 7}, {6, 8, 8}} {
		got := weights(counts...)
		if got[0] != start[0] || got[6] != start[6] || got[len(got)-1] != start[len(start)-1] {
			t.Errorf("%v endpoints: weights %v, were %v", counts, got, start)
		}
	}
	if got := weights(2, 8, 8); got[0] == start[0] && got[2] == start[6] {
		t.Errorf("most of zone a gone: weights %v as before", got)
	}
}

func TestAStateOfAnotherZoneOrVersionIsNotTaken(t *testing.T) {
	req := sdktest.Request("b", even, perZone(6, 8, 8)...)
	want := sdktest.Weights(run(t, "", req))
	a := newAsk(t, "")
	a.decide(sdktest.Request("a", even, perZone(6, 8, 8)...))
	for _, state := range [][]byte{a.state, {2}, {1, 9}, []byte(strings.Repeat("\xff", 1024)), append(slices.Clone(a.state), 0)} {
		req.State = state
		if got := sdktest.Weights(run(t, "", req)); !slices.Equal(got, want) {
			t.Errorf("state %x: weights %v, want %v", state, got, want)
		}
	}
}

func TestAChangeOfMindHasToHold(t *testing.T) {
	a := newAsk(t, `{"holdSeconds":30}`)
	acts := func(counts ...int) (bool, time.Duration) {
		resp := a.decide(sdktest.Request("a", even, perZone(counts...)...))
		return !strings.Contains(resp.Answers[0].Reason, "default kept"), resp.Requeue
	}
	for i, s := range []struct {
		after time.Duration
		zoneB int
		acts  bool
		asks  time.Duration
	}{
		{0, 4, true, 0},
		{5 * time.Second, 1, true, 30 * time.Second}, // too few: wait
		{10 * time.Second, 1, true, 20 * time.Second},
		{10 * time.Second, 4, true, 0}, // over before it counted
		{5 * time.Second, 1, true, 30 * time.Second},
		{30 * time.Second, 1, false, 0},               // it holds
		{time.Second, 4, false, 30 * time.Second},     // enough again: wait too
		{29 * time.Second, 4, false, 1 * time.Second}, //
		{time.Second, 4, true, 0},
		{time.Second, 0, true, 0}, // a zone without endpoints is no zone with too few
	} {
		a.now += s.after.Milliseconds()
		got, wait := acts(4, s.zoneB, 4)
		if got != s.acts || wait != s.asks {
			t.Errorf("step %d: acts %v and asks again after %v, want %v and %v", i, got, wait, s.acts, s.asks)
		}
	}
}

func TestTheAnswerDoesNotDependOnHowOftenItIsAsked(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	for range 200 {
		often, seldom := newAsk(t, `{"holdSeconds":5}`), newAsk(t, `{"holdSeconds":5}`)
		counts := []int{3, 3, 3}
		var wake int64
		var changed bool
		var last []int
		for step := range 60 {
			if rnd.IntN(8) == 0 || step == 0 {
				counts[rnd.IntN(3)] = rnd.IntN(5)
				counts[0] = max(counts[0], 1)
				changed = true
			}
			often.now += 1000
			want := sdktest.Weights(often.decide(sdktest.Request("a", even, perZone(counts...)...)))
			// The other one is asked as a host asks: on a change, and when the plugin wished it.
			if seldom.now = often.now; changed || wake != 0 && wake <= seldom.now {
				resp := seldom.decide(sdktest.Request("a", even, perZone(counts...)...))
				last, changed, wake = sdktest.Weights(resp), false, 0
				if resp.Requeue > 0 {
					wake = seldom.now + resp.Requeue.Milliseconds()
				}
			}
			if !slices.Equal(last, want) {
				t.Fatalf("step %d, endpoints %v: asked every second %v, asked when needed %v", step, counts, want, last)
			}
		}
	}
}
