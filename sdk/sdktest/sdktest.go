// Package sdktest is for native unit tests of plugins: it builds requests and runs plugins through the real wire form,
// without a sandbox.
package sdktest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Now is the time of the requests of NewRequest, in Unix milliseconds.
const Now = 1_750_000_000_000

// node is the node of the requests.
const node = "node-1"

// Window is the window of outcomes in the requests of NewRequest, in milliseconds: that of a host with its default settings.
const Window = 500

// Run configures p with settings, "" for none, and returns its response to req. As on a host, p sees only the inputs that
// it needs (sdk.Needer) and the values of the keys that it declares (sdk.Keyer). A panic of p is not recovered.
func Run(p sdk.Plugin, settings string, req *abi.Request) (*abi.Response, error) {
	n, err := sdk.NewNativePlugin(func() sdk.Plugin { return p }, []byte(settings))
	if err != nil {
		return nil, err
	}
	return decide(n, req)
}

// RunChain runs plugins in order, as a host does: each sees the capacities and shares of those before. It returns the response of
// each.
func RunChain(req *abi.Request, plugins ...*sdk.NativePlugin) ([]*abi.Response, error) {
	all, _, err := runChain(req, plugins)
	return all, err
}

// Parts runs plugins in order, and returns the part of the new connections that each endpoint gets, 0 to 1; nil if no endpoint
// gets any.
func Parts(req *abi.Request, plugins ...*sdk.NativePlugin) ([]float64, error) {
	_, last, err := runChain(req, plugins)
	if err != nil {
		return nil, err
	}
	return last.Parts(nil), nil
}

// runChain also returns the request that the next plugin would get.
func runChain(req *abi.Request, plugins []*sdk.NativePlugin) ([]*abi.Response, *abi.Request, error) {
	next := *req
	next.Endpoints = slices.Clone(next.Endpoints)
	var all []*abi.Response
	for i, p := range plugins {
		resp, err := decide(p, &next)
		if err != nil {
			return nil, nil, fmt.Errorf("plugin %d of the chain: %w", i, err)
		}
		next.Apply(p.Role(), abi.AnswerOf(resp))
		all = append(all, resp)
	}
	return all, &next, nil
}

func decide(n *sdk.NativePlugin, req *abi.Request) (*abi.Response, error) {
	resp := new(abi.Response)
	resp.Reset(len(req.Endpoints))
	return resp, n.DecideNoRecover(req, resp)
}

// Answers returns the capacities or shares in a response, by the role of the plugin; 1 is that of an ordinary endpoint.
func Answers(resp *abi.Response) []float64 {
	var w []float64
	for _, a := range resp.Results {
		w = append(w, float64(a.Value)/abi.One)
	}
	return w
}

// NewRequest returns a request for the cluster pool, of a node in zone, at Now. Endpoints without an address get 10.0.0.1:8080,
// 10.0.0.2:8080 and so on, and names of Pods: web-0, web-1 and so on; their capacities and shares are those for the first plugin
// of a chain. nodes is the number of Nodes by zone, with 4 cores each; the node of the request is the first of them. Only plugins
// with sdk.NeedNodes see them. The request has the zones of nodes and of endpoints. To give endpoints labels or annotations, set
// Keys of the request and Values of the endpoints, see Values.
func NewRequest(zone string, nodes map[string]int, endpoints ...abi.Endpoint) *abi.Request {
	req := &abi.Request{
		Now: Now, Namespace: "default", Service: "web", PortNumber: 80, Protocol: 6, Family: 4,
		Node: node, Zone: zone, Generation: 1, Endpoints: slices.Clone(endpoints),
		ConnectionsAgeMS: abi.NoAge, OutcomesWindowMS: Window,
	}
	rows := map[string]*abi.Zone{}
	row := func(name string) *abi.Zone {
		if rows[name] == nil {
			rows[name] = &abi.Zone{Name: name}
		}
		return rows[name]
	}
	for name, n := range nodes {
		row(name).Nodes, row(name).MilliCPU = uint32(n), uint64(n)*4000
		req.NodeCount += uint32(n)
	}
	addr := netip.MustParseAddr("10.0.0.1")
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		if !e.Addr.IsValid() {
			e.Addr = netip.AddrPortFrom(addr, 8080)
			addr = addr.Next()
		}
		if e.Pod == "" {
			e.Pod = fmt.Sprintf("web-%d", i)
		}
		if e.Connections != abi.ConnectionsUnknown {
			req.ConnectionsAgeMS = 0
		}
		if e.Zone == "" {
			continue
		}
		z := row(e.Zone)
		z.Total++
		if e.Conditions&abi.Ready != 0 {
			z.Ready++
		}
		if e.Conditions&abi.Serving != 0 {
			z.Serving++
		}
	}
	req.Begin()
	for _, z := range rows {
		req.Zones = append(req.Zones, *z)
	}
	slices.SortFunc(req.Zones, func(a, b abi.Zone) int { return strings.Compare(a.Name, b.Name) })
	return req
}

// Ready returns a ready endpoint on another node, chosen by the default rules.
func Ready(zone string) abi.Endpoint {
	return abi.Endpoint{
		Conditions: abi.Ready | abi.Serving | abi.Chosen | abi.Eligible, Node: "node-" + zone, Zone: zone,
		PriorWeight: abi.NoWeight, ReadySince: Now - 3_600_000, Connections: abi.ConnectionsUnknown,
	}
}

// Local returns an endpoint like Ready on the node of the request; zone should be the zone of the request.
func Local(zone string) abi.Endpoint {
	e := Ready(zone)
	e.Node = node
	e.Conditions |= abi.Local
	return e
}

// Unchosen returns a ready endpoint that the default rules do not choose, such as one hinted to another zone.
func Unchosen(zone string) abi.Endpoint {
	e := Ready(zone)
	e.Conditions &^= abi.Chosen
	return e
}

// Terminating returns a serving endpoint that has been terminating since since, in Unix milliseconds. It is not chosen by
// the default rules, as when others are ready.
func Terminating(zone string, since int64) abi.Endpoint {
	e := Ready(zone)
	e.Conditions = abi.Serving | abi.Terminating | abi.Eligible
	e.TerminatingSince = since
	return e
}

// NotReady returns an endpoint that is neither ready nor serving, and not eligible: the host ignores capacity for it.
func NotReady(zone string) abi.Endpoint {
	e := Ready(zone)
	e.Conditions, e.ReadySince = 0, abi.NoTime
	return e
}

// Held returns an endpoint like NotReady that the panic hold of the policy makes eligible, and the default rules choose.
func Held(zone string) abi.Endpoint {
	e := NotReady(zone)
	e.Conditions = abi.Eligible | abi.Held | abi.Chosen
	return e
}

// Watched returns e with outcomes in the last window, and the same since a minute ago. Attempts are the sum.
func Watched(e abi.Endpoint, answered, refused, unanswered int) abi.Endpoint {
	attempts := answered + refused + unanswered
	e.Outcomes = abi.Outcomes{
		Attempts: uint32(attempts), Answered: uint32(answered), Refused: uint32(refused), Unanswered: uint32(unanswered),
		TotalAttempts: uint64(attempts), TotalAnswered: uint64(answered), TotalRefused: uint64(refused), TotalUnanswered: uint64(unanswered),
		Since: Now - 60_000,
	}
	return e
}

// Values returns values for Endpoint.Values or Request.ServiceValues, in the order of the keys of Pods or Services in
// Request.Keys. A value that the object does not have is abi.Value{}.
func Values(texts ...string) []abi.Value {
	var values []abi.Value
	for _, text := range texts {
		values = append(values, abi.Value{Text: text, Present: true})
	}
	return values
}

// Repeat returns n endpoints like e.
func Repeat(n int, e abi.Endpoint) []abi.Endpoint {
	return slices.Repeat([]abi.Endpoint{e}, n)
}
