package sdktest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Session decides for one Service port and pool over time, as a host does: the state of a response is in the next request. It
// fails the test if the plugin fails.
type Session struct {
	// Now is the time of the next request, in Unix milliseconds, at first that of NewRequest.
	Now   int64
	State []byte
	// EndpointStates are the states of endpoints, by address.
	EndpointStates abi.EndpointStates
	// Endpoints are those of Request. They have addresses. A capacity of 0 stays 0, as if a previous plugin had excluded the
	// endpoint.
	Endpoints []abi.Endpoint
	// Twice makes Decide repeat each decision in a new instance of the plugin, which must respond the same.
	Twice bool

	t        testing.TB
	create   func() sdk.Plugin
	settings string
	plugin   *sdk.NativePlugin
}

// NewSession configures a plugin with settings, "" for none. Endpoints get addresses, names, capacities and shares as in
// NewRequest.
func NewSession(t testing.TB, create func() sdk.Plugin, settings string, endpoints ...abi.Endpoint) *Session {
	t.Helper()
	return &Session{
		Now: Now, Endpoints: NewRequest("", nil, endpoints...).Endpoints,
		t: t, create: create, settings: settings, plugin: Native(t, create, settings),
	}
}

// Request returns a request with the endpoints of the session, of a node in zone.
func (s *Session) Request(zone string) *abi.Request {
	req := NewRequest(zone, nil, s.Endpoints...)
	for i, e := range s.Endpoints {
		req.Endpoints[i].Capacity, req.Endpoints[i].Share = e.Capacity, e.Share
	}
	return req
}

// Decide returns the plugin's response to req, in which it sets the state, and the time: whole seconds, as hosts do.
func (s *Session) Decide(req *abi.Request) *abi.Response {
	s.t.Helper()
	req.Now, req.State = s.Now/1000*1000, s.State
	req.EndpointStates = s.EndpointStates.For(req)
	resp := s.decide(s.plugin, req)
	if s.Twice {
		again := s.decide(Native(s.t, s.create, s.settings), req)
		if a, b := fmt.Sprintf("%+v", *resp), fmt.Sprintf("%+v", *again); a != b {
			s.t.Fatalf("the same request, another response:\n%s\n%s", a, b)
		}
	}
	s.State = slices.Clone(resp.State)
	s.EndpointStates = abi.StatesOf(req, resp)
	return resp
}

func (s *Session) decide(p *sdk.NativePlugin, req *abi.Request) *abi.Response {
	s.t.Helper()
	resp, err := decide(p, req)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// SetConnections sets the open connections of the first endpoints of a request, as they were age ago. A number below 0 is
// unknown, as are those of the other endpoints.
func SetConnections(req *abi.Request, age time.Duration, open ...int) {
	for i, n := range open {
		if i < len(req.Endpoints) && n >= 0 {
			req.Endpoints[i].Connections = uint32(n)
		}
	}
	if len(open) > 0 {
		req.ConnectionsAgeMS = uint32(age.Milliseconds())
	}
}
