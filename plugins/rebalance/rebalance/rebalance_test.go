package rebalance

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

// session is a host that counts connections.
type session struct {
	*sdktest.Session
	t    testing.TB
	node string
	age  time.Duration
	edit func(*abi.Request)
}

func newSession(t testing.TB, settings string, eps ...abi.Endpoint) *session {
	t.Helper()
	return &session{Session: sdktest.NewSession(t, New, settings, eps...), t: t, node: "node-1", edit: func(*abi.Request) {}}
}

// decide decides with numbers of open connections; those below 0 are not counted.
func (s *session) decide(open ...int) *abi.Response {
	s.t.Helper()
	req := s.Request("a")
	req.Node = s.node
	sdktest.SetConnections(req, s.age, open...)
	s.edit(req)
	resp := s.Decide(req)
	for i, r := range resp.Results {
		if r.Value != req.Endpoints[i].Share {
			s.t.Fatalf("endpoint %d: share %d became %d", i, req.Endpoints[i].Share, r.Value)
		}
	}
	return resp
}

// sheds returns what each endpoint sheds, in permille.
func sheds(resp *abi.Response) (out []int) {
	for _, r := range resp.Results {
		out = append(out, int(r.ShedPermille))
	}
	return out
}

// since returns n endpoints that became ready at a time, in milliseconds before sdktest.Now.
func since(n int, ago time.Duration) []abi.Endpoint {
	e := sdktest.Ready("a")
	e.ReadySince = sdktest.Now - ago.Milliseconds()
	return sdktest.Repeat(n, e)
}

// atOnce are settings without delays.
const atOnce = `{"delay":"0s","jitter":"0s"}`

func TestOldEndpointsShedTheirExcessInRounds(t *testing.T) {
	s := newSession(t, atOnce, slices.Concat(since(2, time.Hour), since(1, 0))...)
	s.Now += 1000
	s.age = 2 * time.Second // from before the new one was ready
	if resp := s.decide(300, 300, -1); !slices.Equal(sheds(resp), []int{0, 0, 0}) || resp.RequeueAfter != time.Second {
		t.Fatalf("not counted since: %v, requeue after %v", sheds(resp), resp.RequeueAfter)
	}
	s.age = 500 * time.Millisecond
	resp := s.decide(300, 300, 0) // 200 each are fair: a third is too much, 10 % the maximum
	if !slices.Equal(sheds(resp), []int{100, 100, 0}) || resp.RequeueAfter != time.Minute {
		t.Fatalf("round 1: %v, requeue after %v", sheds(resp), resp.RequeueAfter)
	}
	if a, b := resp.Results[0].Reason, resp.Results[2].Reason; a != "sheds 10 % of its connections in a minute" || b != "new: others shed connections" {
		t.Errorf("%q, %q", a, b)
	}
	// Within the round, the same sheds go on whatever the numbers are.
	s.Now += 30_000
	if resp = s.decide(285, 285, 30); !slices.Equal(sheds(resp), []int{100, 100, 0}) || resp.RequeueAfter != 30*time.Second {
		t.Fatalf("after 30 s: %v, requeue after %v", sheds(resp), resp.RequeueAfter)
	}
	// It ends, with an answer without sheds. The next one needs a count from after its end.
	s.Now += 30_000
	for range 2 {
		if resp = s.decide(270, 270, 60); !slices.Equal(sheds(resp), []int{0, 0, 0}) || resp.RequeueAfter != time.Second {
			t.Fatalf("at the end: %v, requeue after %v", sheds(resp), resp.RequeueAfter)
		}
	}
	s.Now += 1000
	if resp = s.decide(230, 215, 155); !slices.Equal(sheds(resp), []int{100, 68, 0}) { // excess of 30 and 15 of what they have
		t.Fatalf("round 2: %v", sheds(resp))
	}
	// Even enough.
	for range 2 {
		s.Now += 61_000
		resp = s.decide(215, 215, 170)
	}
	if !slices.Equal(sheds(resp), []int{0, 0, 0}) || resp.Results[2].Reason != "" {
		t.Fatalf("even: %v, %q", sheds(resp), resp.Results[2].Reason)
	}
	// The time of the newcomer is over.
	s.Now = sdktest.Now + 900_000
	if resp = s.decide(600, 600, 0); !slices.Equal(sheds(resp), []int{0, 0, 0}) || resp.RequeueAfter != 0 || resp.State != nil {
		t.Errorf("after 15 minutes: %v, requeue after %v", sheds(resp), resp.RequeueAfter)
	}
}

func TestNothingIsShedWithoutNeed(t *testing.T) {
	scaled := slices.Concat(since(3, time.Hour), since(1, 10*time.Second))
	leaving := sdktest.Terminating("a", sdktest.Now)
	leaving.Conditions, leaving.ReadySince = leaving.Conditions|abi.Chosen, sdktest.Now
	for name, tt := range map[string]struct {
		settings string
		eps      []abi.Endpoint
		open     []int
		edit     func(*abi.Request)
		why      string
	}{
		"no newcomer":        {eps: since(4, time.Hour), open: []int{300, 0, 0, 0}},
		"even":               {eps: scaled, open: []int{110, 110, 110, 90}},
		"few connections":    {eps: scaled, open: []int{25, 25, 25, 0}},
		"none":               {eps: scaled, open: []int{0, 0, 0, 0}},
		"uneven, not by it":  {eps: scaled, open: []int{300, 20, 80, 110}},
		"not counted":        {eps: scaled, open: []int{300, 300, 300, -1}},
		"affinity":           {eps: scaled, open: []int{300, 300, 300, 0}, edit: func(r *abi.Request) { r.SessionAffinityMS = 1000 }, why: "session affinity"},
		"two pools":          {eps: scaled, open: []int{300, 300, 300, 0}, edit: func(r *abi.Request) { r.ExternalPolicyLocal = true }, why: "traffic policies is Local"},
		"one endpoint":       {eps: since(1, 0), open: []int{300}},
		"a terminating one":  {eps: append(since(3, time.Hour), leaving), open: []int{300, 300, 300, 0}},
		"a large pool":       {eps: append(since(maxEndpoints, time.Hour), since(1, 0)...), open: slices.Repeat([]int{300}, maxEndpoints), why: "more than 1002 endpoints"},
		"its share is small": {eps: scaled, open: []int{330, 330, 330, 10}, edit: func(r *abi.Request) { r.Endpoints[3].Capacity = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t, atOnce, tt.eps...)
			if tt.edit != nil {
				s.edit = tt.edit
			}
			for range 3 {
				s.Now += 61_000
				resp := s.decide(tt.open...)
				if slices.Max(sheds(resp)) > 0 || !strings.Contains(resp.Results[0].Reason, tt.why) || (tt.why == "") != (resp.Results[0].Reason == "") {
					t.Fatalf("%v, %q", sheds(resp), resp.Results[0].Reason)
				}
			}
		})
	}
	s := newSession(t, atOnce, scaled...) // and with need
	s.Now += 20_000
	if resp := s.decide(300, 300, 300, 0); slices.Max(sheds(resp)) == 0 {
		t.Error("nothing is shed")
	}
}

// Fair shares are by capacity: a new endpoint that lifecycle gives a tenth lacks little.
func TestFairSharesAreByCapacity(t *testing.T) {
	eps := slices.Concat(since(2, time.Hour), since(2, 0))
	capacities := func(s *session) {
		for i, c := range []uint32{20, 10, 1, 9} {
			s.Endpoints[i].Capacity = c * 100_000
		}
	}
	s := newSession(t, `{"delay":"0s","jitter":"0s","maxShedPercentPerMinute":100,"minConnections":5,"tolerancePercent":10}`, eps...)
	capacities(s)
	s.Now += 1000
	// Fair are 200, 100, 10 and 90 of 400. The first has 40 too many, the second 25; the new ones lack 65.
	if got := sheds(s.decide(240, 125, 0, 35)); !slices.Equal(got, []int{164, 200, 0, 0}) {
		t.Errorf("%v", got)
	}
	// No more than the new ones lack: 20 of 40.
	s = newSession(t, `{"delay":"0s","jitter":"0s","maxShedPercentPerMinute":100,"minConnections":5,"tolerancePercent":10}`, eps...)
	capacities(s)
	s.Now += 1000
	if got := sheds(s.decide(240, 80, 5, 75)); !slices.Equal(got, []int{80, 0, 0, 0}) {
		t.Errorf("%v", got)
	}
}

// A draining endpoint keeps its connections, however small its capacity is: lifecycle says what becomes of them.
func TestDrainingEndpointsShedNothing(t *testing.T) {
	leaving := sdktest.Terminating("a", sdktest.Now)
	eps := slices.Concat(since(2, time.Hour), since(1, 0), []abi.Endpoint{leaving})
	s := newSession(t, atOnce, eps...)
	s.Endpoints[3].Capacity = 100_000
	s.Now += 1000
	if got := sheds(s.decide(300, 300, 0, 900)); !slices.Equal(got, []int{100, 100, 0, 0}) {
		t.Errorf("%v", got)
	}
	s = newSession(t, atOnce, eps...)
	s.Endpoints[3].Capacity = 100_000
	s.Now += 1000
	if got := sheds(s.decide(200, 200, 190, 900)); slices.Max(got) > 0 {
		t.Errorf("the others are even: %v", got)
	}
}

// Nodes begin at different times, and the same one always at the same.
func TestNodesBeginAtDifferentTimes(t *testing.T) {
	begins := map[int64]int{}
	for node := range 400 {
		s := newSession(t, `{"delay":"20s","jitter":"50s"}`, slices.Concat(since(2, time.Hour), since(1, 0))...)
		s.node = fmt.Sprint("node-", node)
		resp := s.decide(300, 300, 0)
		wait := resp.RequeueAfter
		s.Now += wait.Milliseconds()
		if resp = s.decide(300, 300, 0); slices.Max(sheds(resp)) == 0 || wait < 20*time.Second || wait > 70*time.Second {
			t.Fatalf("node %d waits %v, then sheds %v", node, wait, sheds(resp))
		}
		begins[int64(wait/time.Second)]++
	}
	for second := int64(20); second <= 70; second++ {
		if n := begins[second]; n == 0 || n > 30 {
			t.Errorf("%d of 400 nodes begin after %d s", n, second)
		}
	}
}

// A change of endpoints during a round begins the rest of it anew, and its end stays.
func TestRoundContinuesWithOtherEndpoints(t *testing.T) {
	eps := slices.Concat(since(2, time.Hour), since(1, 0))
	s := newSession(t, atOnce, eps...)
	s.Now += 1000
	s.decide(300, 300, 0)
	s.Now += 20_000
	s.Endpoints = sdktest.NewRequest("a", nil, append(eps, since(1, -21*time.Second)...)...).Endpoints
	s.age = 3 * time.Second
	if resp := s.decide(290, 290, 20, -1); !slices.Equal(sheds(resp), []int{0, 0, 0, 0}) || resp.RequeueAfter != 40*time.Second {
		t.Errorf("the new one is not counted: %v, requeue after %v", sheds(resp), resp.RequeueAfter)
	}
	s.Now, s.age = s.Now+10_000, 0
	s.Endpoints = sdktest.NewRequest("a", nil, eps...).Endpoints
	if resp := s.decide(280, 290, 30); !slices.Equal(sheds(resp), []int{100, 100, 0}) || resp.RequeueAfter != 30*time.Second {
		t.Errorf("%v, requeue after %v", sheds(resp), resp.RequeueAfter)
	}
}

func TestDecisionDoesNotDependOnHowOftenItIsMade(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 40 {
		eps := slices.Concat(since(4, time.Hour), since(2, 0))
		often, seldom := newSession(t, `{"jitter":"7s"}`, eps...), newSession(t, `{"jitter":"7s"}`, eps...)
		wake := int64(0)
		var last *abi.Response
		for second := range 900 {
			open := make([]int, 6)
			for i := range open {
				open[i] = 100 + rnd.IntN(100)
			}
			open[5] = rnd.IntN(50)
			often.Now += 1000
			seldom.Now = often.Now
			want := often.decide(open...)
			if second == 0 || wake != 0 && wake <= seldom.Now {
				last, wake = seldom.decide(open...), 0
				if last.RequeueAfter > 0 {
					wake = seldom.Now + last.RequeueAfter.Milliseconds()
				}
			}
			if !slices.Equal(sheds(last), sheds(want)) {
				t.Fatalf("round %d, second %d: called every second %v, called when needed %v", round, second, sheds(want), sheds(last))
			}
		}
	}
}

// exact is a second implementation of how much a round sheds, in floating point: connections of each endpoint. edge reports that
// what newcomers lack is as much as the tolerance, so that rounding decides.
func exact(s settings, eps []abi.Endpoint, open []int, isNew []bool) (out []float64, edge bool) {
	total, weight := 0.0, 0.0
	out = make([]float64, len(eps))
	for i, e := range eps {
		if e.Capacity > 0 {
			total, weight = total+float64(open[i]), weight+float64(e.Capacity)
		}
	}
	lack, shares, excess, newcomers := 0.0, 0.0, 0.0, 0.0
	for i, e := range eps {
		fair := total * float64(e.Capacity) / weight
		if e.Capacity == 0 {
			continue
		}
		if isNew[i] {
			newcomers, shares, lack = newcomers+1, shares+fair, lack+max(0, fair-float64(open[i]))
		}
		excess += max(0, float64(open[i])-fair)
	}
	edge = math.Abs(lack/shares-float64(s.TolerancePercent)/100) < .0011
	if newcomers == 0 || shares/newcomers < float64(s.MinConnections) || lack/shares <= float64(s.TolerancePercent)/100 {
		return out, edge
	}
	for i, e := range eps {
		if fair := total * float64(e.Capacity) / weight; e.Capacity > 0 && float64(open[i]) > fair {
			out[i] = min((float64(open[i])-fair)*min(1, lack/excess), float64(open[i])*float64(s.MaxShedPercentPerMinute)/100)
		}
	}
	return out, edge
}

func TestRoundsAgreeWithTheModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	shed := 0
	for round := range 3000 {
		s := settings{1 + rnd.Int64N(100), 900, 0, 0, 1 + rnd.Int64N(60), 1 + rnd.Int64N(100)}
		text := fmt.Sprintf(`{"maxShedPercentPerMinute":%d,"delay":"0s","jitter":"0s","tolerancePercent":%d,"minConnections":%d}`, s.MaxShedPercentPerMinute,
			s.TolerancePercent, s.MinConnections)
		var eps []abi.Endpoint
		var open []int
		var isNew []bool
		scale := 1 << (4 + rnd.IntN(18))
		for i := range 2 + rnd.IntN(12) {
			e := since(1, time.Hour)[0]
			isNew = append(isNew, i == 0 || rnd.IntN(3) == 0)
			if e.Capacity = uint32(rnd.IntN(4)) * abi.One; i < 2 {
				e.Capacity = abi.One
			}
			if open = append(open, rnd.IntN(scale)); isNew[i] {
				e.ReadySince, open[i] = sdktest.Now-rnd.Int64N(60_000), rnd.IntN(scale/2)
			}
			eps = append(eps, e)
		}
		a := newSession(t, text, eps...)
		for i := range eps {
			a.Endpoints[i].Capacity = eps[i].Capacity
		}
		a.Now += 1000
		want, edge := exact(s, a.Endpoints, open, isNew)
		got := sheds(a.decide(open...))
		for i := range got {
			n := float64(got[i]) * float64(open[i]) / 1000
			// Never more, and less by a step and what rounding loses at most.
			if n > want[i]*1.0001 || n < want[i]-float64(open[i])*(step+3)/1000 && !edge {
				t.Fatalf("round %d: %s: endpoint %d sheds %.1f of %d, want %.1f", round, text, i, n, open[i], want[i])
			}
			shed += got[i]
		}
	}
	if shed == 0 {
		t.Error("nothing was shed")
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"maxShedPercentPerMinute":0}`:   "maxShedPercentPerMinute: 0 is not 1 to 100",
		`{"duration":"59s"}`:              "duration: 59s is not 1m to 24h",
		`{"delay":"-1s"}`:                 `delay: "-1s" is not a duration such as`,
		`{"jitter":"3601s"}`:              "jitter: 1h1s is not 0s to 1h",
		`{"tolerancePercent":0}`:          "tolerancePercent: 0 is not 1 to 90",
		`{"minConnections":0}`:            "minConnections: 0 is not 1 to 1000000",
		`{"percent":5}`:                   `unknown field "percent"`,
		`{"maxShedPercentPerMinute":"5"}`: "maxShedPercentPerMinute: want an integer, got a string",
	})
}

func FuzzState(f *testing.F) {
	eps := slices.Concat(since(5, time.Hour), since(2, time.Minute))
	s := newSession(f, atOnce, eps...)
	s.decide(500, 600, 700, 800, 900, 0, 10)
	f.Add(s.State, uint16(3), uint16(500), int64(1000))
	f.Add([]byte{1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, uint16(1), uint16(0), int64(-5000))
	f.Add(slices.Concat(s.State[:stateHead], slices.Repeat([]byte{255}, 7)), uint16(20), uint16(7), int64(3000))
	f.Add([]byte{2}, uint16(2), uint16(2), int64(1<<39))
	f.Fuzz(func(t *testing.T, state []byte, a, b uint16, later int64) {
		if len(state) > abi.MaxStateLen || later < -1<<40 || later > 1<<40 {
			return
		}
		open := []int{int(a), int(b), 100, 100, 100, 0, 10}
		s := newSession(t, atOnce, eps...)
		s.State, s.Now, s.Twice = state, s.Now+later, true
		resp := s.decide(open...)
		if len(s.State) > abi.MaxStateLen || resp.RequeueAfter > time.Minute {
			t.Fatalf("%d bytes of state, requeue after %v", len(s.State), resp.RequeueAfter)
		}
	})
}
