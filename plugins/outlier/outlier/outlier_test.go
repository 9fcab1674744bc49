package outlier

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// counts are the outcomes of a reading of an endpoint.
type counts struct{ answered, refused, unanswered int }

// session is a host that counts outcomes.
type session struct {
	*sdktest.Session
	node string
}

func newSession(t testing.TB, settings string, eps ...abi.Endpoint) *session {
	t.Helper()
	return &session{Session: sdktest.NewSession(t, New, settings, eps...), node: "node-1"}
}

// read takes a reading, which lists the endpoints from the first, and decides.
func (s *session) read(readings ...counts) *abi.Response {
	for i := range s.Endpoints {
		c := counts{}
		if i < len(readings) {
			c = readings[i]
		}
		o := &s.Endpoints[i].Outcomes
		o.Attempts, o.Answered, o.Refused, o.Unanswered = uint32(c.answered+c.refused+c.unanswered), uint32(c.answered), uint32(c.refused), uint32(c.unanswered)
		o.TotalAttempts += uint64(o.Attempts)
		o.TotalAnswered += uint64(o.Answered)
		o.TotalRefused += uint64(o.Refused)
		o.TotalUnanswered += uint64(o.Unanswered)
	}
	return s.decide()
}

func (s *session) decide() *abi.Response {
	req := s.Request("a")
	req.Node = s.node
	return s.Decide(req)
}

func on(node string, e abi.Endpoint) abi.Endpoint { e.Node = node; return e }

// spread returns n endpoints, each on a node of its own.
func spread(n int) []abi.Endpoint {
	var eps []abi.Endpoint
	for i := range n {
		eps = append(eps, on(fmt.Sprintf("n%d", i), sdktest.Ready("a")))
	}
	return eps
}

// out returns the indexes of endpoints without capacity.
func out(resp *abi.Response) []int {
	var all []int
	for i, r := range resp.Results {
		if r.Value == 0 {
			all = append(all, i)
		}
	}
	return all
}

func TestEndpointThatFailsIsEjectedAndReturnsOnTrial(t *testing.T) {
	s := newSession(t, `{"jitterPercent":0}`, spread(10)...)
	if got := out(s.read(counts{answered: 4}, counts{answered: 6, refused: 4})); got != nil {
		t.Fatalf("ejected %v although most connections are answered", got)
	}
	s.Now += 1000
	resp := s.read(counts{answered: 4}, counts{}, counts{unanswered: 5})
	if got := out(resp); !slices.Equal(got, []int{2}) || resp.RequeueAfter != 9*time.Second || resp.Results[2].Flags&abi.FlagKeepDraining == 0 {
		t.Fatalf("ejected %v, requeue after %v, %+v", got, resp.RequeueAfter, resp.Results[2])
	}
	if got := resp.Results[2].Reason; got != "ejected for 30 s" {
		t.Errorf("reason %q", got)
	}
	s.Now += 29_000
	if resp = s.decide(); resp.Results[2].Value != 0 || resp.RequeueAfter != time.Second {
		t.Fatalf("after 29 s: capacities %v, requeue after %v", sdktest.Answers(resp), resp.RequeueAfter)
	}
	s.Now += 1000
	resp = s.read()
	if w := sdktest.Answers(resp); w[2] != .1 || w[0] != 1 || resp.RequeueAfter != 10*time.Second || resp.Results[2].Reason != "returned: 10 %" {
		t.Fatalf("after 30 s: capacities %v, requeue after %v, %q", w, resp.RequeueAfter, resp.Results[2].Reason)
	}
	// One failed connection of the trial is enough, and the second ejection is twice as long.
	s.Now += 2000
	if resp = s.read(counts{answered: 9}, counts{}, counts{refused: 1}); !slices.Equal(out(resp), []int{2}) || resp.RequeueAfter != time.Minute {
		t.Fatalf("capacities %v, requeue after %v", sdktest.Answers(resp), resp.RequeueAfter)
	}
	if got := resp.Results[2].Reason; got != "ejected for 60 s, ejection 2" {
		t.Errorf("reason %q", got)
	}
	// It recovers: twice its share after each 10 s in which it has answered, and in the end nothing is left.
	s.Now += 60_000
	s.read()
	for i, c := range []struct {
		counts
		want float64
	}{{counts{}, .1}, {counts{answered: 1}, .2}, {counts{answered: 3, refused: 2}, .4}, {counts{}, .4}, {counts{answered: 1}, .8}, {counts{answered: 1}, 1}} {
		s.Now += 5000
		s.read()
		s.Now += 5000
		if resp = s.read(counts{}, counts{}, c.counts); sdktest.Answers(resp)[2] != c.want {
			t.Fatalf("stage %d: capacities %v, want %v", i, sdktest.Answers(resp), c.want)
		}
	}
	s.Now += 20_000
	if resp = s.decide(); len(s.EndpointStates) != 0 || resp.RequeueAfter != 0 {
		t.Errorf("in the end: states of %d endpoints, requeue after %v", len(s.EndpointStates), resp.RequeueAfter)
	}
}

// TestEndpointThatFailsAsBeforeIsNotTakenBack: of ten endpoints that get 3 connections a second each, one refuses two of three
// for ten minutes. It is ejected for longer each time, and has never all of its share in between.
func TestEndpointThatFailsAsBeforeIsNotTakenBack(t *testing.T) {
	s := newSession(t, `{"jitterPercent":0,"consecutiveReadings":0}`, spread(10)...)
	capacity, owed, sent, failed, full := 1.0, 0.0, 0, 0, 0
	for range 600 {
		readings := make([]counts, 10)
		for i := range readings {
			readings[i].answered = 3
		}
		readings[2].answered = 0
		for owed += 3 * capacity; owed >= 1; owed-- {
			if sent++; sent%3 == 0 {
				readings[2].answered++
			} else {
				readings[2].refused++
			}
		}
		failed += readings[2].refused
		if capacity == 1 {
			full++
		}
		capacity = sdktest.Answers(s.read(readings...))[2]
		s.Now += 1000
	}
	t.Logf("%d of 1800 connections are sent to it, %d fail; %d s at full share", sent, failed, full)
	if full > 3 || failed > 20 {
		t.Errorf("%d s at full share, %d connections fail", full, failed)
	}
}

// Few connections are enough if none is answered.
func TestConsecutiveReadingsEject(t *testing.T) {
	s := newSession(t, ``, spread(4)...)
	for i, step := range []struct {
		c    counts
		want bool
	}{
		{counts{refused: 1}, false}, {counts{answered: 9}, false}, {counts{unanswered: 1}, false}, {counts{answered: 1, refused: 1}, false},
		{counts{unanswered: 1}, false}, {counts{}, false}, {counts{unanswered: 1}, true},
	} {
		s.Now += 1000
		if got := out(s.read(counts{answered: 1}, step.c)) != nil; got != step.want {
			t.Fatalf("reading %d: ejected is %v", i, got)
		}
	}
}

// The same reading twice is one reading.
func TestRepeatedRequestDoesNotCountTwice(t *testing.T) {
	s := newSession(t, ``, spread(4)...)
	s.read(counts{refused: 1})
	for range 5 {
		s.Now += 1000
		if got := out(s.decide()); got != nil {
			t.Fatalf("ejected %v", got)
		}
	}
}

func TestTimesGrowToTheMaximumAndShrink(t *testing.T) {
	s := newSession(t, `{"jitterPercent":0}`, spread(10)...)
	var got []time.Duration
	for range 12 {
		resp := s.read(counts{refused: 9})
		if !slices.Equal(out(resp), []int{0}) {
			t.Fatalf("capacities %v", sdktest.Answers(resp))
		}
		got = append(got, resp.RequeueAfter)
		s.Now += resp.RequeueAfter.Milliseconds() + 1000 // the first reading since it has returned
	}
	for i, d := range got {
		if want := min(300, time.Duration(30*(i+1))) * time.Second; d != want {
			t.Errorf("ejection %d: %v, want %v", i+1, d, want)
		}
	}
	for range 5 { // the trial begins, and has four stages
		s.Now += 10_000
		s.read(counts{answered: 1})
	}
	s.Now += 45_000 // four windows without failures
	if resp := s.read(counts{refused: 9}); resp.RequeueAfter != 210*time.Second {
		t.Errorf("after 45 s of health: %v, want 210 s", resp.RequeueAfter)
	}
}

func TestLimitPanicAndWorstFirst(t *testing.T) {
	bad := func(n ...int) (all []counts) {
		for _, refused := range n {
			all = append(all, counts{refused: refused})
		}
		return all
	}
	for _, tt := range []struct {
		name      string
		endpoints int
		readings  []counts
		want      []int
		reason    string // of endpoint 0
	}{
		{"one of ten", 10, bad(0, 9), []int{1}, ""},
		{"at least one", 3, bad(0, 9), []int{1}, ""},
		{"one of two", 2, bad(0, 9), []int{1}, ""},
		{"the only one", 1, bad(9), nil, "kept: 1 of 1 fail, panic"},
		{"the worst of three in ten", 10, bad(8, 9, 7), []int{1}, "fails, kept: limit of ejections"},
		{"two of twenty", 20, bad(8, 9, 7, 6), []int{0, 1}, "ejected for 30 s"},
		{"half", 4, bad(8, 9), []int{1}, "fails, kept: limit of ejections"},
		{"more than half", 4, bad(8, 9, 8), nil, "kept: 3 of 4 fail, panic"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSession(t, `{"jitterPercent":0}`, spread(tt.endpoints)...)
			resp := s.read(tt.readings...)
			if got := out(resp); !slices.Equal(got, tt.want) || resp.Results[0].Reason != tt.reason {
				t.Errorf("ejected %v, want %v; reason %q", got, tt.want, resp.Results[0].Reason)
			}
		})
	}
}

// What was ejected before a panic gets connections as long as it lasts.
func TestPanicLiftsEjections(t *testing.T) {
	s := newSession(t, ``, spread(4)...)
	s.read(counts{refused: 9})
	s.Now += 1000
	if got := out(s.read(counts{refused: 9}, counts{refused: 9}, counts{refused: 9})); got != nil {
		t.Fatalf("in panic: ejected %v", got)
	}
	s.Now += 10_000
	if got := out(s.read(counts{}, counts{answered: 9}, counts{answered: 9})); !slices.Equal(got, []int{0}) {
		t.Errorf("after the panic: ejected %v", got)
	}
}

func TestNodeIsEjectedWhenSeveralOfItsEndpointsFail(t *testing.T) {
	var eps []abi.Endpoint
	for i := range 12 {
		eps = append(eps, on([]string{"x", "y", "z"}[i/4], sdktest.Ready("a")))
	}
	s := newSession(t, `{"jitterPercent":0}`, eps...)
	if got := out(s.read(counts{refused: 9})); !slices.Equal(got, []int{0}) {
		t.Fatalf("one fails: ejected %v", got)
	}
	s.Now += 1000
	resp := s.read(counts{}, counts{unanswered: 9}, counts{}, counts{answered: 1}, counts{answered: 1})
	if got := out(resp); !slices.Equal(got, []int{0, 1, 2, 3}) || resp.Results[2].Reason != "ejected for 30 s: its node fails" {
		t.Fatalf("two fail: ejected %v, reason %q", got, resp.Results[2].Reason)
	}
	// Those that have not failed do not make the node fail again.
	s.Now += 30_000
	if resp = s.read(counts{}, counts{}, counts{answered: 1}); out(resp) != nil {
		t.Fatalf("after 30 s: capacities %v", sdktest.Answers(resp))
	}
	s.Now += 1000
	if got := out(s.read(counts{refused: 1})); !slices.Equal(got, []int{0}) {
		t.Errorf("one fails again: ejected %v", got)
	}
	// Never the nodes of more than half of the endpoints: then those that fail, within the limit.
	s = newSession(t, ``, on("x", sdktest.Ready("a")), on("x", sdktest.Ready("a")), on("x", sdktest.Ready("a")), on("y", sdktest.Ready("a")))
	if got := out(s.read(counts{refused: 9}, counts{refused: 8})); !slices.Equal(got, []int{0}) {
		t.Errorf("most endpoints on the node: ejected %v", got)
	}
	s = newSession(t, `{"nodeEndpoints":0}`, eps...)
	if got := out(s.read(counts{refused: 9}, counts{refused: 8})); !slices.Equal(got, []int{0}) {
		t.Errorf("without nodes: ejected %v", got)
	}
}

// Nodes that eject an endpoint at the same time do not return to it at the same time, and choose differently among equals.
func TestNodesAreNotInStep(t *testing.T) {
	until, chosen := map[time.Duration]int{}, map[int]int{}
	for n := range 100 {
		s := newSession(t, ``, spread(20)...)
		s.node = fmt.Sprintf("worker-%d", n)
		s.read(counts{refused: 9})
		s.Now += 20_000
		d := s.decide().RequeueAfter + 20*time.Second
		if until[d]++; d < 30*time.Second || d > 36*time.Second {
			t.Fatalf("ejected for %v", d)
		}
		s = newSession(t, `{"maxEjectionPercent":5}`, spread(20)...)
		s.node = fmt.Sprintf("worker-%d", n)
		chosen[out(s.read(counts{refused: 9}, counts{refused: 9}, counts{refused: 9}, counts{refused: 9}))[0]]++
	}
	for d, n := range until {
		if n > 30 {
			t.Errorf("%d of 100 nodes return after %v", n, d)
		}
	}
	if len(until) != 7 || len(chosen) != 4 {
		t.Errorf("times %v, chosen %v", until, chosen)
	}
}

func TestCapacitiesOfPreviousPluginsAreRespected(t *testing.T) {
	s := newSession(t, `{"jitterPercent":0}`, spread(6)...)
	s.Endpoints[2].Capacity, s.Endpoints[5].Capacity = 400_000, 0
	refused := []counts{{}, {}, {refused: 9}, {}, {}, {refused: 99}}
	if w := sdktest.Answers(s.read(refused...)); !slices.Equal(w, []float64{1, 1, 0, 1, 1, 0}) {
		t.Errorf("capacities %v", w)
	}
	s.Now += 30_000
	if w := sdktest.Answers(s.read()); !slices.Equal(w, []float64{1, 1, .04, 1, 1, 0}) {
		t.Errorf("on trial: capacities %v", w)
	}
}

// Endpoints that hints keep from this node are ejected too: a plugin for locality may use them. They are not what is left for
// this node.
func TestEndpointsWithoutShareAreNotAllThatIsLeft(t *testing.T) {
	eps := spread(10)
	for i := 1; i < 10; i++ {
		eps[i].Conditions &^= abi.Chosen
	}
	s := newSession(t, ``, eps...)
	if got := out(s.read(counts{}, counts{refused: 9})); !slices.Equal(got, []int{1}) {
		t.Errorf("ejected %v", got)
	}
	s = newSession(t, ``, eps...)
	resp := s.read(counts{refused: 9})
	if got := out(resp); got != nil || !strings.Contains(resp.Results[0].Reason, "panic") || resp.RequeueAfter != time.Second {
		t.Errorf("ejected %v, %q, requeue after %v", got, resp.Results[0].Reason, resp.RequeueAfter)
	}
}

// A host that forgets the history of an endpoint without weight begins at 0 again.
func TestCountersThatBeginAnew(t *testing.T) {
	s := newSession(t, ``, spread(10)...)
	s.Endpoints[0].Outcomes.TotalAnswered, s.Endpoints[0].Outcomes.TotalAttempts = 1000, 1000
	s.read(counts{answered: 9, refused: 1})
	s.Now += 3000
	s.Endpoints[0].Outcomes = abi.Outcomes{Since: s.Now}
	if got := out(s.read(counts{refused: 5})); !slices.Equal(got, []int{0}) {
		t.Errorf("ejected %v", got)
	}
}

func TestThousandEndpointsThatFail(t *testing.T) {
	s := newSession(t, ``, spread(1000)...)
	readings := make([]counts, 1000)
	for i := range 400 {
		readings[i].refused = 5 + i%7
	}
	resp := s.read(readings...)
	if n := len(out(resp)); n != 100 || len(s.EndpointStates) != 400 || len(resp.State) != 0 { // maxEjectionPercent, and the windows of the others
		t.Errorf("%d ejected, states of %d endpoints, %d bytes of state", n, len(s.EndpointStates), len(resp.State))
	}
	for _, i := range out(resp) {
		if readings[i].refused != 11 && readings[i].refused != 10 {
			t.Errorf("endpoint %d is ejected before worse ones", i)
		}
	}
	for i := range readings {
		readings[i].refused = 9
	}
	if resp = s.read(readings...); out(resp) != nil {
		t.Errorf("all fail: %d ejected", len(out(resp)))
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"window":"1s"}`:              "window: 1s is not 2s to 1m",
		`{"failedPercent":0}`:          "failedPercent: 0",
		`{"minAttempts":0}`:            "minAttempts: 0",
		`{"consecutiveReadings":101}`:  "consecutiveReadings: 101",
		`{"nodeEndpoints":1}`:          "nodeEndpoints: 1 is neither 0, for never, nor 2 to 100",
		`{"nodeEndpoints":101}`:        "nodeEndpoints: 101",
		`{"baseEjectionTime":"0s"}`:    "baseEjectionTime: 0s",
		`{"maxEjectionTime":"3601s"}`:  "maxEjectionTime: 1h1s",
		`{"maxEjectionTime":"29s"}`:    "maxEjectionTime: 29s is less than baseEjectionTime, 30s",
		`{"jitterPercent":101}`:        "jitterPercent: 101",
		`{"maxEjectionPercent":0}`:     "maxEjectionPercent: 0",
		`{"panicPercent":0}`:           "panicPercent: 0",
		`{"returnPercent":0}`:          "returnPercent: 0",
		`{"base_ejection_time":"30s"}`: `unknown field "base_ejection_time"`,
	})
}
