package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// guest is a module to measure.
type guest struct {
	name    string
	module  string // see modules.path
	leaving bool   // a fifth of its endpoints terminate
	missing string // why it may be missing; "": it is required
}

// guests are two minimal plugins (compare zones, set weights), one per language, to measure the call itself, and the
// bundled plugins with their default settings.
var guests = []guest{
	{name: "trivial, in C (`examples/plugin-c`)", module: "bench-guests/c.wasm", missing: "not measured: built without clang and lld"},
	{name: "trivial, in Go (`host/lab/bench/guest`)", module: "bench-guests/go.wasm"},
	{name: "`locality`", module: "locality"},
	{name: "`lifecycle`, a fifth terminating", module: "lifecycle", leaving: true},
}

var callSizes = []int{1, 10, 100, 1000} // endpoints

// calls has the cost of one guest's calls by number of endpoints: encode, call, decide, decode.
type calls struct {
	guest  guest
	loaded bool
	costs  []callCost
}

type callCost struct {
	median, least float64 // microseconds
	fuel          uint64
}

// callCosts measures the guests in turn, so that other load on the machine affects all of them.
func callCosts(ctx context.Context, m modules) ([]calls, error) {
	all := make([]calls, len(guests))
	loaded := make([]*wasm.Plugin, len(guests))
	for i, g := range guests {
		all[i].guest = g
		p, done, err := m.load(ctx, g.module)
		if errors.Is(err, fs.ErrNotExist) && g.missing != "" {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer done()
		loaded[i], all[i].loaded = p, true
	}
	for _, n := range callSizes {
		times, requests := make([][]float64, len(guests)), make([]*abi.Request, len(guests))
		var resp abi.Response
		resp.Reset(n)
		for i, g := range guests {
			requests[i] = request(n, g.leaving)
		}
		const rounds, warm = 300, 20
		for round := range rounds {
			for i, p := range loaded {
				if p == nil {
					continue
				}
				us, err := batch(p, requests[i], &resp)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", guests[i].name, err)
				}
				if round >= warm {
					times[i] = append(times[i], us)
				}
			}
		}
		for i, p := range loaded {
			if p != nil {
				slices.Sort(times[i])
				all[i].costs = append(all[i].costs, callCost{times[i][len(times[i])/2], times[i][0], p.Stats().LastFuel})
			}
		}
	}
	return all, nil
}

// batch returns the microseconds per call of a batch that takes 0.1 to 1 ms: long enough for the clock's resolution, and
// short enough to be rarely interrupted.
func batch(p *wasm.Plugin, req *abi.Request, resp *abi.Response) (float64, error) {
	for range 3 { // refill the caches
		if err := p.Decide(req, resp); err != nil {
			return 0, err
		}
	}
	count := 20 + 100_000/(400+60*len(req.Endpoints))
	start := time.Now()
	for range count {
		if err := p.Decide(req, resp); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(start).Nanoseconds()) / 1000 / float64(count), nil
}

// request has a Service port with n endpoints in three zones; with leaving, every fifth is terminating.
func request(n int, leaving bool) *abi.Request {
	req := &abi.Request{
		Now: 1_700_000_000_000, Namespace: "bench", Service: "svc", Port: "http", PortNumber: 80, Protocol: 6, Family: 4,
		Node: nodeName(0), Zone: zoneName(0), NodeCount: nodes, ConnectionsAgeMS: abi.NoAge,
	}
	for z := range zones {
		req.Zones = append(req.Zones, abi.Zone{Name: zoneName(z), Nodes: nodes / zones, MilliCPU: 80_000, Ready: uint32((n + zones - 1 - z) / zones)})
	}
	for j := range n {
		req.Endpoints = append(req.Endpoints, abi.Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, 0, byte(j >> 8), byte(j)}), 8080),
			Conditions: abi.Ready | abi.Serving | abi.Chosen | abi.Eligible, Node: nodeName(j), Zone: zoneName(j),
			PriorWeight: abi.NoWeight, ReadySince: 1_600_000_000_000, Connections: abi.ConnectionsUnknown,
		})
		if e := &req.Endpoints[j]; leaving && j%5 == 4 {
			e.Conditions, e.TerminatingSince = abi.Serving|abi.Terminating|abi.Eligible, req.Now-10_000
		}
	}
	req.Begin()
	return req
}

// printCalls prints what calls take by number of endpoints, and by how many are made together.
func (o *options) printCalls(ctx context.Context, w io.Writer) error {
	all, err := callCosts(ctx, o.modules)
	if err != nil {
		return err
	}
	where := "in the process of the plugin"
	if o.modules.here {
		where = "in the process of the caller"
	}
	printCalls(w, where, all)
	costs, err := togetherCosts(ctx, o.modules)
	if err == nil {
		printTogether(w, costs)
	}
	return err
}

func printCalls(w io.Writer, where string, all []calls) {
	fmt.Fprintf(w, "\n**Plugin call** %s (encode, call, decide, decode), µs: median (minimum of 280 batches); fuel\n\n| endpoints |", where)
	for _, n := range callSizes {
		fmt.Fprintf(w, " %d |", n)
	}
	fmt.Fprint(w, "\n|---|---|---|---|---|\n")
	for _, c := range all {
		fmt.Fprintf(w, "| %s |", c.guest.name)
		if !c.loaded {
			fmt.Fprintf(w, " %s | | | |\n", c.guest.missing)
			continue
		}
		for _, k := range c.costs {
			fmt.Fprintf(w, " %.2f (%.2f); %d |", k.median, k.least, k.fuel)
		}
		fmt.Fprintln(w)
	}
}
