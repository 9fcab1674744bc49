package leastloaded

import (
	"fmt"
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

// percent returns the weights in percent of the mean, rounded.
func percent(resp *abi.Response) (out []int) {
	total, n := 0, 0
	for _, w := range sdktest.Weights(resp) {
		if total += w; w > 0 {
			n++
		}
	}
	for _, w := range sdktest.Weights(resp) {
		out = append(out, (w*100*n+total/2)/total)
	}
	return out
}

func TestWeightsFollowOpenConnectionsInBoundedSteps(t *testing.T) {
	s := newSession(t, `{"tolerancePercent":0}`, ready(2)...)
	if got := sdktest.Weights(s.decide(50, 50)); !slices.Equal(got, []int{1, 1}) {
		t.Fatalf("equal loads: weights %v", got)
	}
	// The averages move by 30 % of the difference, and by 20 % at most: 1.3 and 0.7 at first.
	for i, want := range []string{"85 % of its share, 120 % of its share", "70 % of its share, 145 % of its share"} {
		s.Now += 10_000
		resp := s.decide(300, 0)
		if got := resp.Results[0].Reason + ", " + resp.Results[1].Reason; got != want {
			t.Errorf("step %d: %s, want %s; weights %v", i, got, want, sdktest.Weights(resp))
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
	want := sdktest.Weights(s.decide(300, 0))
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
		if got := sdktest.Weights(resp); !slices.Equal(got, want) || resp.RequeueAfter != at.wait {
			t.Errorf("call %d: weights %v, were %v; requeue after %v, want %v", i, got, want, resp.RequeueAfter, at.wait)
		}
	}
	s.age = 2 * time.Second
	if got := sdktest.Weights(s.decide(300, 0)); slices.Equal(got, want) {
		t.Error("a new count changes nothing")
	}
}

func TestOldOrMissingCountsHoldTheWeights(t *testing.T) {
	s := newSession(t, `{"maxAgeSeconds":30}`, ready(2)...)
	if resp := s.decide(); !slices.Equal(sdktest.Weights(resp), []int{1, 1}) || resp.Results[0].Reason != "held: open connections are not counted" ||
		resp.RequeueAfter != 10*time.Second {
		t.Errorf("before the first count: %+v, requeue after %v", resp.Results, resp.RequeueAfter)
	}
	s.decide(50, 50)
	s.Now += 10_000
	want := sdktest.Weights(s.decide(300, 0))
	s.Now, s.age = s.Now+60_000, 31*time.Second
	resp := s.decide(0, 300)
	if got := sdktest.Weights(resp); !slices.Equal(got, want) || !strings.Contains(resp.Results[0].Reason, "not been counted for more than 30 s") {
		t.Errorf("31 s old: weights %v, were %v; %q", got, want, resp.Results[0].Reason)
	}
	if resp = s.decide(); !slices.Equal(sdktest.Weights(resp), want) {
		t.Errorf("not counted: weights %v, were %v", sdktest.Weights(resp), want)
	}
	s.age = 29 * time.Second
	if got := sdktest.Weights(s.decide(0, 300)); slices.Equal(got, want) {
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

// Shares are relative to the weights of the previous plugin, and an endpoint without weight stays without.
func TestWeightsOfThePreviousPluginAreTheShares(t *testing.T) {
	eps := ready(4)
	eps[0].Weight, eps[1].Weight, eps[2].Weight, eps[3].Weight = 30, 10, 10, 0
	s := newSession(t, `{"tolerancePercent":0}`, eps...)
	s.Endpoints[3].Weight = 0
	for range 5 {
		if got := sdktest.Weights(s.decide(300, 100, 100, 900)); !slices.Equal(got, []int{30, 10, 10, 0}) {
			t.Fatalf("loads are as the weights: %v", got)
		}
		s.Now += 10_000
	}
	for range 40 {
		s.Now += 10_000
		s.decide(600, 100, 100, 900) // the first has 1.25 of its share, the others 0.625
	}
	resp := s.decide(600, 100, 100, 900)
	if a, b := resp.Results[0], resp.Results[1]; a.Reason != "80 % of its share" || b.Reason != "160 % of its share" || int(a.Weight)*2 != int(b.Weight)*3 {
		t.Errorf("%+v, %+v", a, b)
	}
}

func TestPoolsThatDoNotFitKeepTheirWeights(t *testing.T) {
	s := newSession(t, "", ready(maxEndpoints+1)...)
	open := make([]int, maxEndpoints+1)
	open[0] = 500
	if resp := s.decide(open...); resp.Results[0].Weight != 1 || resp.Results[0].Reason != "weights kept: more than 200 endpoints" || resp.State != nil {
		t.Errorf("%+v, %d bytes of state", resp.Results[0], len(resp.State))
	}
	s = newSession(t, "", ready(maxEndpoints)...)
	if resp := s.decide(open[1:]...); len(resp.State) != stateHead+averageSize*maxEndpoints || len(resp.State) > abi.MaxStateLen {
		t.Errorf("%d bytes of state", len(resp.State))
	}
	eps := ready(2)
	eps[0].Weight, eps[1].Weight = 800, 401
	s = newSession(t, "", eps...)
	if resp := s.decide(1, 500); resp.Results[0].Weight != 800 || resp.Results[1].Weight != 401 || resp.Results[0].Reason != "weights kept: their sum would be more than 1000" {
		t.Errorf("%+v", resp.Results)
	}
	s = newSession(t, "", ready(1)...)
	if resp := s.decide(50); resp.Results[0].Weight != 1 || resp.State != nil || resp.RequeueAfter != 0 {
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
		`{"intervalSeconds":1}`:               "intervalSeconds: 1 is not 2 to 300",
		`{"smoothingPercent":51}`:             "smoothingPercent: 51 is not 1 to 50",
		`{"maxChangePercent":0}`:              "maxChangePercent: 0 is not 1 to 100",
		`{"tolerancePercent":-1}`:             "tolerancePercent: -1 is not 0 to 50",
		`{"minPercent":9}`:                    "minPercent: 9 is not 10 to 100",
		`{"maxPercent":401}`:                  "maxPercent: 401 is not 100 to 400",
		`{"maxAgeSeconds":0}`:                 "maxAgeSeconds: 0 is not 1 to 3600",
		`{"maxTotal":65536}`:                  "maxTotal: 65536 is not 1 to 65535",
		`{"minPercent":100,"maxPercent":100}`: "minPercent, maxPercent: both are 100",
		`{"interval":5}`:                      `unknown field "interval"`,
		`{"intervalSeconds":"5"}`:             "intervalSeconds: want an integer, got a string",
	})
}
