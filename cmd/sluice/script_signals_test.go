package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/outcomes"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// scriptSignals are what a node in a script knows of connections: outcomes, as the engine counts them.
type scriptSignals struct{ tracker *outcomes.Tracker }

// OutcomesWindow implements policy.Signals.
func (s *scriptSignals) OutcomesWindow(time.Time) (reading uint64, window time.Duration) {
	reading, _, window = s.tracker.Last()
	return reading, window
}

// Outcomes implements policy.Signals.
func (s *scriptSignals) Outcomes(k model.EndpointKey) (o abi.Outcomes, failedAt uint64) {
	o, failedAt, _ = s.tracker.Get(k)
	return o, failedAt
}

// ConnectionsAge implements policy.Signals: open connections are not counted.
func (*scriptSignals) ConnectionsAge(time.Time) (time.Duration, bool) { return 0, false }

// Connections implements policy.Signals.
func (*scriptSignals) Connections(model.EndpointKey) (uint32, bool) { return 0, false }

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

// traffic ADDRESS:PORT CONNECTIONS DURATION: advances the clock, reads outcomes twice a second, makes so many connections before each
// reading, and plans after it. It prints how many connections failed, and the time of the last one since the start.
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
		for i := range count {
			p := fake.Packet{From: netip.AddrPortFrom(netip.MustParseAddr("10.244.250.1"), uint16(20_000+i)), To: to, Protocol: model.TCP}
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

// read reads the outcomes of connections.
func (n *scriptNode) read(ts *testscript.TestScript) {
	counters, err := n.backend.ReadOutcomes(context.Background())
	ts.Check(err)
	changes := n.signals.tracker.Update(n.now, func(yield func(model.EndpointKey, outcomes.Counters) bool) {
		for k, c := range counters {
			if !yield(k, outcomes.Counters(c)) {
				return
			}
		}
	})
	_, at, window := n.signals.tracker.Last()
	n.planner.AddOutcomes(at, window, changes)
}
