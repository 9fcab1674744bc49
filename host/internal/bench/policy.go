package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// load loads a module without settings.
func load(ctx context.Context, file string) (*wasm.Plugin, func(), error) {
	module, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (make plugins)", err)
	}
	host, err := wasm.New(ctx, wasm.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	p, err := host.Load(ctx, "bench", module, nil)
	if err != nil {
		return nil, nil, err
	}
	return p, func() { p.Close(); host.Close(ctx) }, nil
}

// calls is the cost of a plugin call by number of endpoints: encode, call, decide, decode.
type calls struct {
	endpoints []int
	us        []float64 // median microseconds
	fuel      []uint64
}

func callCosts(ctx context.Context, file string) (*calls, error) {
	p, done, err := load(ctx, file)
	if err != nil {
		return nil, err
	}
	defer done()
	c := &calls{endpoints: []int{1, 10, 100, 1000}}
	for _, n := range c.endpoints {
		req, resp := request(n), abi.Response{}
		var times []float64
		for round := range 25 {
			const batch = 20
			start := time.Now()
			for range batch {
				resp.Reset(n)
				if err := p.Decide(req, &resp); err != nil {
					return nil, err
				}
			}
			if round >= 5 { // the first rounds warm up
				times = append(times, float64(time.Since(start).Nanoseconds())/1000/batch)
			}
		}
		slices.Sort(times)
		c.us = append(c.us, times[len(times)/2])
		c.fuel = append(c.fuel, p.Stats().LastFuel)
	}
	return c, nil
}

// request is a Service port of n endpoints in three zones.
func request(n int) *abi.Request {
	req := &abi.Request{
		Now: 1_700_000_000_000, Namespace: "bench", Service: "svc", Port: "http", PortNumber: 80, Protocol: 6, Family: 4,
		Node: nodeName(0), Zone: zoneName(0),
	}
	for z := range zones {
		req.Zones = append(req.Zones, abi.Zone{Name: zoneName(z), Nodes: nodes / zones, MilliCPU: 80_000, Ready: uint32((n + zones - 1 - z) / zones)})
	}
	for j := range n {
		req.Endpoints = append(req.Endpoints, abi.Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, 0, byte(j >> 8), byte(j)}), 8080),
			Conditions: abi.Ready | abi.Serving | abi.Chosen, Node: nodeName(j), Zone: zoneName(j),
			Weight: 1, PriorWeight: abi.NoWeight, ReadySince: 1_600_000_000_000, Connections: abi.NotCounted,
		})
	}
	return req
}

func (c *calls) print(w io.Writer) {
	fmt.Fprintf(w, "\n**Plugin call** (`zone-spill`, a Go guest: encode, call, decide, decode)\n\n| endpoints |")
	for _, n := range c.endpoints {
		fmt.Fprintf(w, " %d |", n)
	}
	fmt.Fprint(w, "\n|---|---|---|---|---|\n| µs a call |")
	for _, us := range c.us {
		fmt.Fprintf(w, " %.2f |", us)
	}
	fmt.Fprint(w, "\n| fuel |")
	for _, f := range c.fuel {
		fmt.Fprintf(w, " %d |", f)
	}
	fmt.Fprintln(w)
}

// policyRun is what planning a cluster with a policy on every Service costs, no kernel involved.
type policyRun struct {
	size             size
	without, with    float64 // seconds to plan all: no policy, and one call a Service
	unchanged        float64 // seconds to look at all of them again with nothing changed
	changed          float64 // milliseconds to plan one changed slice
	calls, callsMore uint64
}

func policyCost(ctx context.Context, file string, s size) (*policyRun, error) {
	p, done, err := load(ctx, file)
	if err != nil {
		return nil, err
	}
	defer done()
	plugins := func(policy.Step) (policy.Plugin, error) { return p, nil }
	all := cluster(s)
	timeIt := func(f func()) float64 {
		start := time.Now()
		f()
		return time.Since(start).Seconds()
	}
	now := time.Unix(1_700_000_000, 0)
	r := &policyRun{size: s}
	bare := plan.NewPlanner(plan.Settings{Node: nodeName(0)}, plugins)
	r.without = timeIt(func() { bare.Apply(all); bare.Plan(now) })

	zoned := &policy.Policy{Name: "zoned", Steps: []policy.Step{{Plugin: "zone-spill"}}}
	planner := plan.NewPlanner(plan.Settings{Node: nodeName(0), Policies: &policy.Set{
		Policies: map[string]*policy.Policy{"zoned": zoned}, Default: "zoned",
	}}, plugins)
	var step plan.Step
	r.with = timeIt(func() { planner.Apply(all); step = planner.Plan(now) })
	if len(step.Errors) > 0 {
		return nil, step.Errors[0]
	}
	r.calls = planner.Calls()
	r.unchanged = timeIt(func() { planner.Reloaded(); planner.Plan(now) })
	r.callsMore = planner.Calls() - r.calls
	const changes = 200
	var slices []model.Change
	for n := range changes {
		slices = append(slices, slice(n, s.endpoints, n+1))
	}
	r.changed = timeIt(func() {
		for _, c := range slices {
			planner.Apply([]model.Change{c})
			planner.Plan(now)
		}
	}) * 1000 / changes
	return r, nil
}

func (r *policyRun) print(w io.Writer) {
	fmt.Fprintf(w, `
**Policy evaluation**, %s (Services × endpoints), %s on every Service, no kernel

| | |
|---|---|
| plan all, no policy | %.0f ms |
| plan all, with the policy (%d plugin calls) | %.0f ms |
| look at all again, nothing changed (%d plugin calls) | %.0f ms |
| one slice changed | %.3f ms |
`, r.size, "`zone-spill`", r.without*1000, r.calls, r.with*1000, r.callsMore, r.unchanged*1000, r.changed)
}
