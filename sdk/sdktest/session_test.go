package sdktest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// recorder is a test that records why it failed.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Errorf(f string, a ...any) { r.failures = append(r.failures, fmt.Sprintf(f, a...)) }
func (r *recorder) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
func (r *recorder) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// failure returns with what message f fails its test.
func failure(t *testing.T, f func(testing.TB)) (message string) {
	r := &recorder{TB: t}
	defer func() {
		if p := recover(); p != nil {
			message = p.(string)
		}
	}()
	f(r)
	return strings.Join(r.failures, "\n")
}

// calls counts its calls, in the state or, which is an error of a plugin, in itself.
type calls struct {
	inside bool
	n      int
}

func (c *calls) Configure(s []byte) error {
	return sdk.ParseSettings(s, func(f *sdk.Fields) { f.Bool("inside", &c.inside) })
}

func (c *calls) Decide(req *sdk.Request, resp *sdk.Response) error {
	n := byte(len(req.State()))
	if c.inside {
		n = byte(c.n)
		c.n++
	}
	if req.NumEndpoints() == 0 {
		return fmt.Errorf("no endpoints")
	}
	resp.SetShare(0, 100+int(n))
	resp.SetState(append(req.State(), n))
	return nil
}

func newCalls() sdk.Plugin { return &calls{} }

func TestSessionPassesStateAndTime(t *testing.T) {
	s := NewSession(t, newCalls, "", Ready("a"), Ready("b"))
	s.Twice = true
	s.Endpoints[1].Capacity = 0
	for n := range 3 {
		s.Now += 1700
		req := s.Request("a")
		resp := s.Decide(req)
		if req.Now != s.Now/1000*1000 || req.Zone != "a" || req.Endpoints[1].Capacity != 0 || resp.Results[0].Value != uint32(100+n) || len(s.State) != n+1 {
			t.Errorf("decision %d: request %+v, weights %v, state %v", n, req, Answers(resp), s.State)
		}
	}
}

func TestSessionFailsOnAnErrorAndOnAnotherResponse(t *testing.T) {
	for want, f := range map[string]func(testing.TB){
		"no endpoints": func(t testing.TB) { NewSession(t, newCalls, "").Decide(NewRequest("a", nil)) },
		"settings":     func(t testing.TB) { NewSession(t, newCalls, `{"x":1}`) },
		"the same request, another response": func(t testing.TB) {
			s := NewSession(t, newCalls, `{"inside":true}`, Ready("a"))
			s.Decide(s.Request("a"))
			s.Twice = true
			s.Decide(s.Request("a"))
		},
	} {
		if got := failure(t, f); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestMustFunctionsFailOnErrors(t *testing.T) {
	none := NewRequest("a", nil)
	for name, f := range map[string]func(testing.TB){
		"MustRun":      func(t testing.TB) { MustRun(t, newCalls(), "", none) },
		"MustRunChain": func(t testing.TB) { MustRunChain(t, none, Native(t, newCalls, "")) },
		"Native":       func(t testing.TB) { Native(t, newCalls, "[") },
		"accepted":     func(t testing.TB) { CheckRefused(t, newCalls, map[string]string{`{"inside":true}`: "inside"}) },
		"other error":  func(t testing.TB) { CheckRefused(t, newCalls, map[string]string{`{"inside":1}`: "outside"}) },
	} {
		if failure(t, f) == "" {
			t.Errorf("%s: no failure", name)
		}
	}
	if got := failure(t, func(t testing.TB) { CheckRefused(t, newCalls, map[string]string{`{"inside":1}`: "inside"}) }); got != "" {
		t.Error(got)
	}
}

func TestConnectionsOfTheFirstEndpointsAreSet(t *testing.T) {
	req := NewRequest("a", nil, Repeat(4, Ready("a"))...)
	SetConnections(req, time.Second)
	if req.ConnectionsAgeMS != abi.NoAge {
		t.Errorf("none: age %d", req.ConnectionsAgeMS)
	}
	SetConnections(req, time.Second, 5, -1, 0)
	var got []uint32
	for _, e := range req.Endpoints {
		got = append(got, e.Connections)
	}
	if want := []uint32{5, abi.ConnectionsUnknown, 0, abi.ConnectionsUnknown}; fmt.Sprint(got) != fmt.Sprint(want) || req.ConnectionsAgeMS != 1000 {
		t.Errorf("%v, age %d, want %v", got, req.ConnectionsAgeMS, want)
	}
}
