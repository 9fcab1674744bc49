package leastloaded

import (
	"fmt"
	"math"
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
	age time.Duration
}

func newSession(t testing.TB, settings string, eps ...abi.Endpoint) *session {
	t.Helper()
	return &session{Session: sdktest.NewSession(t, New, settings, eps...)}
}

// decide decides with numbers of open connections; without any, they are not counted.
func (s *session) decide(open ...int) *abi.Response {
	req := s.Request("a")
	sdktest.SetConnections(req, s.age, open...)
	return s.Decide(req)
}

func ready(n int) []abi.Endpoint { return sdktest.Repeat(n, sdktest.Ready("a")) }

// percent returns the shares in percent of the mean, rounded.
func percent(resp *abi.Response) (out []int) {
	total := 0.0
	for _, w := range sdktest.Answers(resp) {
		total += w
	}
	for _, w := range sdktest.Answers(resp) {
		out = append(out, int(math.Round(100*w*float64(len(resp.Results))/total)))
	}
	return out
}

func TestSharesFollowOpenConnectionsInBoundedSteps(t *testing.T) {
	s := newSession(t, `{"tolerancePercent":0}`, ready(2)...)
	if got := sdktest.Answers(s.decide(50, 50)); !slices.Equal(got, []float64{1, 1}) {
		t.Fatalf("equal loads: shares %v", got)
	}
	// The averages move by 30 % of the difference, and by 20 % at most: 1.3 and 0.7 at first.
	for i, want := range []string{"85 % of its share, 120 % of its share", "70 % of its share, 145 % of its share"} {
		s.Now += 10_000
		resp := s.decide(300, 0)
		if got := resp.Results[0].Reason + ", " + resp.Results[1].Reason; got != want {
			t.Errorf("step %d: %s, want %s; shares %v", i, got, want, sdktest.Answers(resp))
		}
		if resp.RequeueAfter != 10*time.Second {
			t.Errorf("requeue after %v", resp.RequeueAfter)
		}
	}
	for range 100 {
		s.Now += 10_000
		s.decide(300, 0)
	}
	// At most twice the share, and the other one what corresponds to its load: the mean of two is 1.
	if resp := s.decide(300, 0); resp.Results[0].Reason != "50 % of its share" || resp.Results[1].Reason != "200 % of its share" {
		t.Errorf("in the end: %q, %q", resp.Results[0].Reason, resp.Results[1].Reason)
	}
}

// Services, and nodes, take their steps at different times.
func TestStepsAreSpreadOverTheInterval(t *testing.T) {
	at := map[time.Duration]int{}
	for node := range 500 {
		req := sdktest.NewRequest("a", nil, ready(2)...)
		req.Node, req.ConnectionsAgeMS = fmt.Sprint("node-", node), 0
		req.Endpoints[0].Connections, req.Endpoints[1].Connections = 5, 5
		resp, err := sdktest.Run(New(), "", req)
		if err != nil {
			t.Fatal(err)
		}
		at[resp.RequeueAfter]++
	}
	for second := 1; second <= 10; second++ {
		if n := at[time.Duration(second)*time.Second]; n < 25 || n > 85 {
			t.Errorf("%d of 500 steps after %d s", n, second)
		}
	}
}

// A step needs a new count, and the interval.
func TestAveragesChangeOnceACount(t *testing.T) {
	s := newSession(t, "", ready(2)...)
	s.decide(50, 50)
	s.Now += 10_000
	want := sdktest.Answers(s.decide(300, 0))
	for i, at := range []struct {
		after, age time.Duration
		wait       time.Duration
	}{
		{0, 0, 10 * time.Second}, {3 * time.Second, 0, 7 * time.Second}, {6 * time.Second, 100 * time.Millisecond, time.Second},
		{time.Second, 10 * time.Second, 10 * time.Second}, // the interval is over, the count is the first one
		{10 * time.Second, 19*time.Second + 300*time.Millisecond, 10 * time.Second},
	} {
		s.Now += at.after.Milliseconds()
		s.age = at.age
		resp := s.decide(300, 0)
		if got := sdktest.Answers(resp); !slices.Equal(got, want) || resp.RequeueAfter != at.wait {
			t.Errorf("call %d: shares %v, were %v; requeue after %v, want %v", i, got, want, resp.RequeueAfter, at.wait)
		}
	}
	s.age = 2 * time.Second
	if got := sdktest.Answers(s.decide(300, 0)); slices.Equal(got, want) {
		t.Error("a new count changes nothing")
	}
}

func TestOldOrMissingCountsHoldTheShares(t *testing.T) {
	s := newSession(t, `{"maxAge":"30s"}`, ready(2)...)
	if resp := s.decide(); !slices.Equal(sdktest.Answers(resp), []float64{1, 1}) || resp.Results[0].Reason != "held: open connections are not counted" ||
		resp.RequeueAfter != 10*time.Second {
		t.Errorf("before the first count: %+v, requeue after %v", resp.Results, resp.RequeueAfter)
	}
	s.decide(50, 50)
	s.Now += 10_000
	want := sdktest.Answers(s.decide(300, 0))
	s.Now, s.age = s.Now+60_000, 31*time.Second
	resp := s.decide(0, 300)
	if got := sdktest.Answers(resp); !slices.Equal(got, want) || !strings.Contains(resp.Results[0].Reason, "not been counted for more than 30 s") {
		t.Errorf("31 s old: shares %v, were %v; %q", got, want, resp.Results[0].Reason)
	}
	if resp = s.decide(); !slices.Equal(sdktest.Answers(resp), want) {
		t.Errorf("not counted: shares %v, were %v", sdktest.Answers(resp), want)
	}
	s.age = 29 * time.Second
	if got := sdktest.Answers(s.decide(0, 300)); slices.Equal(got, want) {
		t.Error("29 s old: nothing changes")
	}
}

// A newcomer has no connections. It begins with the mean share, and stays below the maximum.
func TestNewcomerStartsAtTheMeanShare(t *testing.T) {
	s := newSession(t, "", ready(4)...)
	s.decide(100, 100, 100, 100)
	s.Endpoints = sdktest.NewRequest("a", nil, ready(5)...).Endpoints
	s.Now += 3000
	if got := percent(s.decide(100, 100, 100, 100, -1)); got[4] != 100 {
		t.Errorf("not counted yet: %v %% of the mean", got)
	}
	s.Now += 7000
	if got := percent(s.decide(100, 100, 100, 100, -1)); got[4] > 110 {
		t.Errorf("not counted yet, after a step: %v %% of the mean", got)
	}
	last := 100
	for range 30 {
		s.Now += 10_000
		got := percent(s.decide(100, 100, 100, 100, 0))
		if got[4] > last*127/100+1 || got[4] > 200 { // a fifth of its share; the mean of all falls meanwhile
			t.Fatalf("%v %% of the mean after %d %%", got, last)
		}
		last = got[4]
	}
	if last < 150 {
		t.Errorf("in the end %d %% of the mean", last)
	}
}

// Loads are relative to capacity and share, and an endpoint without stays without.
func TestLoadsAreRelativeToWhatPreviousPluginsGive(t *testing.T) {
	s := newSession(t, `{"tolerancePercent":0}`, ready(4)...)
	s.Endpoints[0].Capacity, s.Endpoints[1].Share, s.Endpoints[2].Share, s.Endpoints[3].Capacity = 1_500_000, 500_000, 500_000, 0
	for range 5 {
		if got := sdktest.Answers(s.decide(300, 100, 100, 900)); !slices.Equal(got, []float64{1, .5, .5, 1}) {
			t.Fatalf("loads are fair: %v", got)
		}
		s.Now += 10_000
	}
	for range 40 {
		s.Now += 10_000
		s.decide(600, 100, 100, 900) // the first has 1.25 of its share, the others 0.625
	}
	resp := s.decide(600, 100, 100, 900)
	if a, b := resp.Results[0], resp.Results[1]; a.Reason != "80 % of its share" || b.Reason != "160 % of its share" || a.Value != 800_000 || b.Value != 800_000 {
		t.Errorf("%+v, %+v", a, b)
	}
}

func TestLargePoolsAreBalanced(t *testing.T) {
	const n = 1000
	s := newSession(t, "", ready(n)...)
	open := make([]int, n)
	for i := range open {
		open[i] = 10
	}
	open[n-1] = 500
	var resp *abi.Response
	for range 12 {
		resp = s.decide(open...)
		s.Now += 10_000
	}
	if first, last := resp.Results[0].Value, resp.Results[n-1].Value; last >= first/2+1 || len(resp.State) != stateSize || len(s.EndpointStates) != n {
		t.Errorf("shares %d and %d, %d bytes of state, states of %d endpoints", first, last, len(resp.State), len(s.EndpointStates))
	}
	s = newSession(t, "", ready(1)...)
	if resp := s.decide(50); resp.Results[0].Value != abi.One || resp.State != nil || resp.RequeueAfter != 0 {
		t.Errorf("one endpoint: %+v", resp)
	}
}

// An endpoint that leaves and others that come change no average.
func TestAveragesStayWithTheirEndpoints(t *testing.T) {
	s := newSession(t, "", ready(6)...)
	all := s.Endpoints
	for range 3 {
		s.decide(200, 100, 50, 100, 100, 100)
		s.Now += 10_000
	}
	want := s.decide(200, 100, 50, 100, 100, 100)
	s.Now += 2000
	s.Endpoints = slices.Concat(all[:1], all[2:])
	got := s.decide(200, 50, 100, 100, 100)
	for i, j := range []int{0, 2, 3, 4, 5} {
		if got.Results[i].Reason != want.Results[j].Reason {
			t.Errorf("endpoint %d: %q, was %q", j, got.Results[i].Reason, want.Results[j].Reason)
		}
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"interval":"1s"}`:                   "interval: 1s is not 2s to 5m",
		`{"smoothingPercent":51}`:             "smoothingPercent: 51 is not 1 to 50",
		`{"maxChangePercent":0}`:              "maxChangePercent: 0 is not 1 to 100",
		`{"tolerancePercent":-1}`:             "tolerancePercent: -1 is not 0 to 50",
		`{"minPercent":9}`:                    "minPercent: 9 is not 10 to 100",
		`{"maxPercent":401}`:                  "maxPercent: 401 is not 100 to 400",
		`{"maxAge":"0s"}`:                     "maxAge: 0s is not 1s to 1h",
		`{"maxTotal":1000}`:                   `unknown field "maxTotal"`,
		`{"minPercent":100,"maxPercent":100}`: "minPercent, maxPercent: both are 100",
		`{"interval":5}`:                      "interval: want a duration such as 30s or 1m30s, got a number",
		`{"interval":"5"}`:                    `interval: "5" is not a duration such as 30s or 1m30s`,
	})
}
