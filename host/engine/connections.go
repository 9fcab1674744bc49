package engine

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// openConnections is the last count of open connections.
type openConnections struct {
	at    time.Time // planner's clock; zero: none
	count map[model.EndpointKey]uint32
	// base are the attempts that the tracker had counted at that time. What it has counted since is added.
	base map[model.EndpointKey]attempts
}

// attempts is a number of connections since a time, Unix milliseconds.
type attempts struct {
	total uint64
	since int64
}

// tableTimeout bounds a dump of the connection tracking table: one of a million entries takes seconds.
const tableTimeout = time.Minute

// countConnections starts a count of open connections if it is due. It returns when the next one is.
func (e *Engine) countConnections(ctx context.Context) time.Time {
	g, s := &e.signals, &e.signals.connections
	own, counts := e.Backend.(backend.ConnectionCounter)
	table, dumps := e.ConnTable.(ConnCounter)
	if !e.Planner.NeedsConnections() || !counts && !dumps {
		e.stopReading(s, ConnectionsCounted)
		g.open = openConnections{}
		return time.Time{}
	}
	if !s.active {
		s.begin(e.SignalsPeriod, 0)
	}
	if g.counting.running {
		return time.Time{}
	}
	if time.Now().Before(s.nextAt) {
		return s.nextAt
	}
	count, frontends := e.Planner.ConnectionsToCount()
	if g.exclusive = counts; counts {
		g.counting.start(ctx, readTimeout, e.countByBackend(own, count, frontends))
	} else {
		g.counting.start(ctx, tableTimeout, e.countByTable(table, count))
	}
	return time.Time{}
}

// countByBackend counts with the data plane's own counters.
func (e *Engine) countByBackend(b backend.ConnectionCounter, count map[model.EndpointKey]uint32, frontends []plan.Key) func(context.Context) func() {
	return func(ctx context.Context) func() {
		cpu, err := e.measure(func() error { return b.CountConnections(ctx, frontends, count) })
		return func() { e.connectionsCounted(count, cpu, err) }
	}
}

func (e *Engine) countByTable(t ConnCounter, count map[model.EndpointKey]uint32) func(context.Context) func() {
	return func(ctx context.Context) func() {
		cpu, err := e.measure(func() error { return t.CountConnections(ctx, count) })
		return func() { e.connectionsCounted(count, cpu, err) }
	}
}

// connectionsCounted takes a count of open connections that took some CPU time.
func (e *Engine) connectionsCounted(count map[model.EndpointKey]uint32, cpu time.Duration, err error) {
	s := &e.signals.connections
	if !s.active || e.readFailed(s, ConnectionsCounted, "counting open connections failed", cpu, err) {
		return
	}
	s.done(e.SignalsPeriod, cpu, maxCountShare)
	base := make(map[model.EndpointKey]attempts, len(count))
	for k := range count {
		if o, _, ok := e.signals.tracker.Get(k); ok {
			base[k] = attempts{o.TotalAttempts, o.Since}
		}
	}
	e.signals.open = openConnections{at: e.planNow(), count: count, base: base}
	e.Observer.OnEvent(Event{Kind: ConnectionsCounted, At: s.lastAt, Duration: cpu, Count: len(count)})
}

// ConnectionsAge implements policy.Signals.
func (g *signals) ConnectionsAge(now time.Time) (time.Duration, bool) {
	if g.open.at.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(g.open.at)), true
}

// Connections implements policy.Signals.
func (g *signals) Connections(k model.EndpointKey) (uint32, bool) {
	n, ok := g.open.count[k]
	if !ok {
		return 0, false
	}
	total := uint64(n)
	if o, _, known := g.tracker.Get(k); known {
		if base := g.open.base[k]; base.since == o.Since {
			total += o.TotalAttempts - base.total
		} else {
			total += o.TotalAttempts
		}
	}
	return uint32(min(total, 1<<32-1)), true
}
