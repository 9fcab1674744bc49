package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
)

// scriptSignals are what a node in a script knows of connections: outcomes, as the engine counts them, and open connections.
type scriptSignals struct {
	*outcomes.Tracker
	open      map[model.EndpointKey]uint32
	countedAt time.Time // zero: not counted
}

// ConnectionsAge implements policy.Signals.
func (s *scriptSignals) ConnectionsAge(now time.Time) (time.Duration, bool) {
	return now.Sub(s.countedAt), !s.countedAt.IsZero()
}

// Connections implements policy.Signals. An endpoint that the command hold has not seen has none.
func (s *scriptSignals) Connections(k model.EndpointKey) (uint32, bool) {
	return s.open[k], !s.countedAt.IsZero()
}

// respond ADDRESS:PORT answers|refuses|silent: how an endpoint responds to new connections from now on.
func cmdRespond(ts *testscript.TestScript, _ bool, args []string) {
	responses := map[string]fake.Response{"answers": fake.Answers, "refuses": fake.Refuses, "silent": fake.Silent}
	addr, err := netip.ParseAddrPort(args[0])
	ts.Check(err)
	r, ok := responses[args[1]]
	if !ok {
		ts.Fatalf("unknown response %q", args[1])
	}
	nodeOf(ts).kernel.SetResponse(model.EndpointKey{Addr: addr, Protocol: model.TCP}, r)
}

// traffic ADDRESS:PORT CONNECTIONS DURATION: advances the clock, reads outcomes twice a second, makes so many connections before
// each reading, each from a port of its own, and plans after it. It prints how many connections failed, and the time of the last
// one since the start.
func cmdTraffic(ts *testscript.TestScript, _ bool, args []string) {
	n := nodeOf(ts)
	to, err := netip.ParseAddrPort(args[0])
	ts.Check(err)
	count, err := strconv.Atoi(args[1])
	ts.Check(err)
	d, err := time.ParseDuration(args[2])
	ts.Check(err)
	const period = 500 * time.Millisecond
	n.read(ts) // the base
	failed, last := 0, time.Duration(0)
	for t := period; t <= d; t += period {
		for range count {
			p := fake.Packet{From: netip.AddrPortFrom(netip.MustParseAddr("10.244.250.1"), uint16(40_000+n.connections%20_000)), To: to, Protocol: model.TCP}
			n.connections++
			r := n.kernel.Connect(p)
			n.kernel.Disconnect(p)
			if r.Response != fake.Answers {
				failed, last = failed+1, t
			}
		}
		n.now = n.now.Add(period)
		n.read(ts)
		n.step(ts)
	}
	fmt.Fprintf(ts.Stdout(), "%d failed, the last one after %v\n", failed, last)
}

// hold ADDRESS:PORT CLIENTS DURATION [LIFETIME [ENDPOINT LIFETIME]]...: advances the clock, with clients that have a connection
// each and connect again when it ends: after its lifetime, which can differ by endpoint, or because it is shed. The connections
// are counted each second. It prints how many were shed, and how many each endpoint has in the end.
func cmdHold(ts *testscript.TestScript, _ bool, args []string) {
	n := nodeOf(ts)
	to, err := netip.ParseAddrPort(args[0])
	ts.Check(err)
	clients, err := strconv.Atoi(args[1])
	ts.Check(err)
	d, err := time.ParseDuration(args[2])
	ts.Check(err)
	lifetimes := map[string]time.Duration{"": 1 << 62}
	for i := 3; i < len(args); i += 2 {
		of := ""
		if i > 3 {
			of = args[i-1]
		}
		lifetimes[of], err = time.ParseDuration(args[i])
		ts.Check(err)
	}
	shed := 0
	for t := time.Duration(0); t < d; t += time.Second {
		n.now = n.now.Add(time.Second)
		shed += n.shed(ts)
		n.signals.open, n.signals.countedAt = map[model.EndpointKey]uint32{}, n.now
		for i := range clients {
			p := fake.Packet{From: netip.AddrPortFrom(netip.MustParseAddr("10.244.250.1"), uint16(20_000+i)), To: to, Protocol: model.TCP}
			end := n.clients[p]
			if !end.After(n.now) {
				n.kernel.Disconnect(p)
			}
			r := n.kernel.Connect(p)
			if !end.After(n.now) {
				lasts := lifetimes[""]
				if l, ok := lifetimes[r.Endpoint.String()]; ok {
					lasts = l
				}
				if end.IsZero() { // not all at the same time
					lasts = max(time.Second, lasts/time.Duration(clients)*time.Duration(i))
				}
				n.clients[p] = n.now.Add(lasts)
			}
			n.signals.open[model.EndpointKey{Addr: r.Endpoint, Protocol: model.TCP}]++
		}
		n.step(ts)
	}
	fmt.Fprintf(ts.Stdout(), "%d shed\n", shed)
	for _, k := range slices.SortedFunc(maps.Keys(n.signals.open), model.EndpointKey.Compare) {
		fmt.Fprintf(ts.Stdout(), "%s %d\n", k.Addr, n.signals.open[k])
	}
}

// shed resets the connections that are due, and returns how many.
func (n *scriptNode) shed(ts *testscript.TestScript) int {
	at := n.planner.NextSheds()
	if at.IsZero() || at.After(n.now) {
		return 0
	}
	steps := n.planner.Sheds(n.now)
	if len(steps) == 0 {
		return 0
	}
	count, deferred, err := n.kernel.Shed(context.Background(), steps, nil)
	ts.Check(err)
	n.planner.ShedsDone(n.now, true, deferred)
	return count.Connections
}

// read reads the outcomes of connections.
func (n *scriptNode) read(ts *testscript.TestScript) {
	counters, err := n.backend.ReadOutcomes(context.Background())
	ts.Check(err)
	changes := n.signals.Tracker.Update(n.now, func(yield func(model.EndpointKey, outcomes.Counters) bool) {
		for k, c := range counters {
			if !yield(k, outcomes.Counters(c)) {
				return
			}
		}
	})
	_, at, window := n.signals.Tracker.Last()
	n.planner.AddOutcomes(at, window, changes)
}
