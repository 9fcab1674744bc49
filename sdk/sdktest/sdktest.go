// Package sdktest tests plugins natively: requests from a few words, and runs that go through the real wire form, both
// ways, without a sandbox.
package sdktest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Now is the time of requests that Request makes, in Unix milliseconds.
const Now = 1_750_000_000_000

// node is the node that requests come from.
const node = "node-1"

// Run configures p with settings, "" for none, and asks it once. As from a host, it gets what it says that it needs, and
// no more. A panic of p comes through.
func Run(p sdk.Plugin, settings string, req *abi.Request) (*abi.Response, error) {
	n, err := sdk.NewNativePlugin(func() sdk.Plugin { return p }, []byte(settings))
	if err != nil {
		return nil, err
	}
	return decide(n, req.Restricted(n.Needs()))
}

// RunChain asks plugins in order, as a host does: each sees the weights of the one before, and what any of them needs. It gives
// each one's response.
func RunChain(req *abi.Request, plugins ...*sdk.NativePlugin) ([]*abi.Response, error) {
	needs := uint32(0)
	for _, p := range plugins {
		needs |= p.Needs()
	}
	next := *req.Restricted(needs)
	next.Endpoints = slices.Clone(next.Endpoints)
	var all []*abi.Response
	for i, p := range plugins {
		resp, err := decide(p, &next)
		if err != nil {
			return nil, fmt.Errorf("plugin %d of the chain: %w", i, err)
		}
		for j, a := range resp.Results {
			next.Endpoints[j].Weight = uint32(a.Weight)
		}
		all = append(all, resp)
	}
	return all, nil
}

func decide(n *sdk.NativePlugin, req *abi.Request) (*abi.Response, error) {
	resp := new(abi.Response)
	resp.Reset(len(req.Endpoints))
	return resp, n.DecideNoRecover(req, resp)
}

// Weights gives the weights of a response.
func Weights(resp *abi.Response) []int {
	var w []int
	for _, a := range resp.Results {
		w = append(w, int(a.Weight))
	}
	return w
}

// NewRequest is a request of the cluster pool from a node in zone, at Now. Endpoints get the addresses 10.0.0.1:8080 and
// up unless they have one, and those that are Chosen weight 1 unless they have one. The zone table has a row for
// each zone of nodes and of an endpoint: nodes is the number of Nodes by zone, of 4 cores each, which only a plugin with
// sdk.NeedNodes gets to see.
func NewRequest(zone string, nodes map[string]int, endpoints ...abi.Endpoint) *abi.Request {
	req := &abi.Request{
		Now: Now, Namespace: "default", Service: "web", PortNumber: 80, Protocol: 6, Family: 4,
		Node: node, Zone: zone, Generation: 1, Endpoints: slices.Clone(endpoints),
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
	}
	addr := netip.MustParseAddr("10.0.0.1")
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		if !e.Addr.IsValid() {
			e.Addr = netip.AddrPortFrom(addr, 8080)
			addr = addr.Next()
		}
		if e.Weight == 0 && e.Conditions&abi.Chosen != 0 {
			e.Weight = 1
		}
		if e.Zone == "" {
			continue
		}
		if z := row(e.Zone); e.Conditions&abi.Ready != 0 {
			z.Ready++
		}
	}
	for _, z := range rows {
		req.Zones = append(req.Zones, *z)
	}
	slices.SortFunc(req.Zones, func(a, b abi.Zone) int { return strings.Compare(a.Name, b.Name) })
	return req
}

// Ready is an endpoint on another node that is ready and chosen by the default rules.
func Ready(zone string) abi.Endpoint {
	return abi.Endpoint{
		Conditions: abi.Ready | abi.Serving | abi.Chosen, Node: "node-" + zone, Zone: zone,
		PriorWeight: abi.NoWeight, ReadySince: Now - 3_600_000, Connections: abi.ConnectionsUnknown,
	}
}

// Local is an endpoint like Ready's on the node that the request comes from; zone should be the request's.
func Local(zone string) abi.Endpoint {
	e := Ready(zone)
	e.Node = node
	e.Conditions |= abi.Local
	return e
}

// Unchosen is an endpoint that is ready but not chosen by the default rules, such as one hinted to another zone.
func Unchosen(zone string) abi.Endpoint {
	e := Ready(zone)
	e.Conditions &^= abi.Chosen
	return e
}

// Terminating is an endpoint that serves but began to terminate at since, Unix milliseconds. The default rules do not
// choose it, as if others were ready.
func Terminating(zone string, since int64) abi.Endpoint {
	e := Ready(zone)
	e.Conditions = abi.Serving | abi.Terminating
	e.TerminatingSince = since
	return e
}

// Repeat gives n endpoints like e.
func Repeat(n int, e abi.Endpoint) []abi.Endpoint {
	return slices.Repeat([]abi.Endpoint{e}, n)
}
