package utilization

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

// session is a host whose endpoints report.
type session struct {
	*sdktest.Session
	keys []string
}

// newSession returns a session with endpoints that have been ready for an hour.
func newSession(t testing.TB, settings string, n int) *session {
	t.Helper()
	e := sdktest.Ready("a")
	e.ReadySince = sdktest.Now - time.Hour.Milliseconds()
	p := New()
	if err := p.Configure([]byte(settings)); err != nil {
		t.Fatal(err)
	}
	return &session{sdktest.NewSession(t, New, settings, sdktest.Repeat(n, e)...), p.(*plugin).Keys()}
}

// decide decides with reports: "application cpu requests errors" of each endpoint, "-" for none.
func (s *session) decide(reports ...string) *abi.Response {
	req := s.Request("a")
	req.Keys = s.keys
	s.set(req, reports...)
	return s.Decide(req)
}

func (s *session) set(req *abi.Request, reports ...string) {
	for i := range req.Endpoints {
		req.Endpoints[i].Values = make([]abi.Value, len(req.Keys))
		if i >= len(reports) {
			continue
		}
		for k, text := range strings.Fields(reports[i]) {
			if text != "-" {
				req.Endpoints[i].Values[k] = abi.Value{Text: text, Present: true}
			}
		}
	}
}

// settle decides until nothing changes, and returns the shares in percent of the mean.
func (s *session) settle(t *testing.T, reports ...string) (out []int) {
	t.Helper()
	resp := s.decide(reports...)
	for range 200 {
		if resp.RequeueAfter == 0 {
			total := 0.0
			for _, w := range sdktest.Answers(resp) {
				total += w
			}
			for _, w := range sdktest.Answers(resp) {
				out = append(out, int(math.Round(100*w*float64(len(resp.Results))/total)))
			}
			return out
		}
		s.Now += resp.RequeueAfter.Milliseconds()
		resp = s.decide(reports...)
	}
	t.Fatalf("shares %v do not come to rest", sdktest.Answers(resp))
	return nil
}

func TestSharesFollowReports(t *testing.T) {
	for _, test := range []struct {
		what, settings string
		reports        []string
		want           []int
	}{
		{"equal", "", []string{"0.5", "0.5"}, []int{100, 100}},
		{"application before CPU", "", []string{"0.4 0.9", "0.8 0.1"}, []int{132, 68}},
		{"CPU where no application utilization is reported", "", []string{"- 0.4", "0 0.8"}, []int{132, 68}},
		{"cost of a request", "", []string{"0.5 - 100", "0.5 - 200", "0.5 - 100"}, []int{76, 148, 76}},
		{"few report requests", "", []string{"0.5 - 100", "0.5", "0.5"}, []int{100, 100, 100}},
		{"errors", "", []string{"0.1 - 100 50", "0.5 - 100", "0.5 - 100"}, []int{90, 105, 105}},
		{"errors do not count", `{"errorPercent": 0}`, []string{"0.1 - 100 50", "0.5 - 100", "0.5 - 100"}, []int{150, 75, 75}},
		{"the one without a report has the median", "", []string{"0.25", "0.5", "1", "-"}, []int{178, 89, 44, 89}},
		{"bounds", "", []string{"0.001", "0.5", "0.5", "50"}, []int{188, 94, 94, 24}},
		{"what is no number", "", []string{"x", "-1", "NaN", "Inf", "", "1e400", "0.5", "0.25"}, nil},
		{"another field", `{"from": "load:utilization/queue"}`, []string{"0.4", "0.8"}, []int{132, 68}},
	} {
		s := newSession(t, test.settings, len(test.reports))
		s.Twice = true
		got := s.settle(t, test.reports...)
		if test.want == nil {
			for i := range 6 {
				if got[i] != got[0] {
					t.Errorf("%s: %v", test.what, got)
				}
			}
			continue
		}
		for i := range got {
			if diff := got[i] - test.want[i]; diff < -8 || diff > 8 {
				t.Errorf("%s: shares %v, want about %v", test.what, got, test.want)
				break
			}
		}
	}
}

func TestChangesAreBoundedAndComeEachInterval(t *testing.T) {
	s := newSession(t, `{"tolerancePercent":0}`, 2)
	for i, want := range []string{"120 % of its share, 85 % of its share", "145 % of its share, 70 % of its share"} {
		resp := s.decide("0.001", "0.999")
		if got := resp.Results[0].Reason + ", " + resp.Results[1].Reason; got != want {
			t.Errorf("step %d: %s, want %s", i, got, want)
		}
		if resp.RequeueAfter != 10*time.Second {
			t.Errorf("step %d: again after %s", i, resp.RequeueAfter)
		}
		s.Now += 4000
		if again := s.decide("0.999", "0.001"); again.Results[0].Reason != resp.Results[0].Reason || again.RequeueAfter != 6*time.Second {
			t.Errorf("within the interval: %q, again after %s", again.Results[0].Reason, again.RequeueAfter)
		}
		s.Now += 6000
	}
}

func TestReportsOfNewEndpointsDoNotCount(t *testing.T) {
	s := newSession(t, `{"hold":"1m"}`, 3)
	s.settle(t, "0.5", "0.5", "0.5")
	s.Endpoints[2].ReadySince = s.Now
	for passed := range 6 {
		resp := s.decide("0.5", "0.5", "0.01")
		if got := sdktest.Answers(resp); !slices.Equal(got, []float64{1, 1, 1}) || resp.RequeueAfter != 10*time.Second {
			t.Errorf("after %d s: %v, again after %s", passed*10, got, resp.RequeueAfter)
		}
		s.Now += 10_000
	}
	if got := sdktest.Answers(s.decide("0.5", "0.5", "0.01")); got[2] <= 1 {
		t.Errorf("after a minute: %v", got)
	}
}

func TestWithoutReportsAllIsAsBefore(t *testing.T) {
	s := newSession(t, "", 2)
	s.settle(t, "0.1", "0.9")
	resp := s.decide()
	if got := resp.Results[0].Reason; got != "no endpoint reports its utilization" {
		t.Error(got)
	}
	if got := s.settle(t); max(got[0], got[1]) > 105 { // the tolerance
		t.Errorf("shares %v", got)
	}
	for _, n := range []int{0, 1} {
		if resp := newSession(t, "", n).decide("0.9"); resp.RequeueAfter != 0 || len(resp.State) > 0 {
			t.Errorf("%d endpoints: %+v", n, resp)
		}
	}
}

// How often the plugin is called does not matter: only reports and time do.
func TestDecisionDoesNotDependOnHowOftenItIsMade(t *testing.T) {
	often, seldom := newSession(t, "", 3), newSession(t, "", 3)
	var last *abi.Response
	wake, reports := int64(0), []string{"0.5", "0.5", "0.5"}
	for second := range 600 {
		changed := second%37 == 0
		if changed {
			reports[second%3] = fmt.Sprintf("0.%d", 1+second%9)
		}
		often.Now += 1000
		seldom.Now = often.Now
		want := often.decide(reports...)
		if last == nil || changed || wake != 0 && wake <= seldom.Now {
			last = seldom.decide(reports...)
			if wake = 0; last.RequeueAfter > 0 {
				wake = seldom.Now + last.RequeueAfter.Milliseconds()
			}
		}
		if got, want := fmt.Sprint(sdktest.Answers(last)), fmt.Sprint(sdktest.Answers(want)); got != want {
			t.Fatalf("second %d: called every second %s, called when needed %s", second, want, got)
		}
	}
}

func TestInvalidSettingsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"from":"cpu_utilization"}`:          `from: "cpu_utilization" is not load:FIELD, for example load:cpu_utilization`,
		`{"from":"load:cpu"}`:                 `from: "load:cpu" is not load:FIELD`,
		`{"from":"label:a"}`:                  `from: "label:a" is not load:FIELD`,
		`{"hold":"2h"}`:                       "hold: ",
		`{"minPercent":100,"maxPercent":100}`: "minPercent, maxPercent: both are 100",
	} {
		if err := New().Configure([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func FuzzState(f *testing.F) {
	s := newSession(f, "", 9)
	s.decide("0.1", "0.9", "0.5 - 10 3")
	f.Add(s.State, []byte{0, 16}, "0.5 - 10", int64(1000))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff}, []byte{0xff, 0xff}, "1e308 1e308 1e-308 1e308", int64(-5000))
	f.Add([]byte{1, 0, 0, 0, 0}, []byte{1}, "- - 5e-324 NaN", int64(1<<40))
	f.Fuzz(func(t *testing.T, state, endpoint []byte, report string, later int64) {
		if len(state) > abi.MaxStateLen || len(endpoint) > abi.MaxEndpointState || later < -1<<40 || later > 1<<40 || len(strings.Fields(report)) > 4 {
			return
		}
		s := newSession(t, "", 5)
		s.State, s.Now, s.Twice = state, s.Now+later, true
		s.EndpointStates = abi.EndpointStates{s.Endpoints[1].Addr: endpoint, s.Endpoints[2].Addr: endpoint}
		resp := s.decide("0.5 - 100", "0.25 - 100 1", report, report)
		for i, w := range sdktest.Answers(resp) {
			if w == 0 {
				t.Fatalf("endpoint %d has no share", i)
			}
		}
		if resp.RequeueAfter < 0 || resp.RequeueAfter > 10*time.Second {
			t.Fatalf("requeue after %v", resp.RequeueAfter)
		}
	})
}
