package engine

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
)

// tableTimeout bounds a dump of the connection tracking table: one of a million entries takes seconds.
const tableTimeout = time.Minute

// countConnections starts a count of open connections if it is due. It returns when the next one is.
func (e *Engine) countConnections(ctx context.Context) time.Time {
	g, s := &e.signals, &e.signals.connections
	own, counts := e.Backend.(backend.ConnectionCounter)
	table, dumps := e.ConnTable.(ConnCounter)
	if !e.Planner.NeedsConnections() || !counts && !dumps {
		if s.active && e.Recorder != nil {
			e.Recorder.OnConnections(e.planNow(), nil)
		}
		e.stopReading(s, ConnectionsCounted)
		g.open = outcomes.Open{}
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
	endpoints := e.Planner.ConnectionsToCount()
	if g.exclusive = counts; counts {
		frontends := e.Planner.FrontendsToCount()
		g.counting.start(ctx, readTimeout, e.count(endpoints, func(ctx context.Context, count map[model.EndpointKey]uint32) error {
			return own.CountConnections(ctx, frontends, count)
		}))
	} else {
		g.counting.start(ctx, tableTimeout, e.count(endpoints, table.CountConnections))
	}
	return time.Time{}
}

// count returns the work of a count, outside of the loop.
func (e *Engine) count(endpoints [][]model.EndpointKey, add func(context.Context, map[model.EndpointKey]uint32) error) func(context.Context) func() {
	return func(ctx context.Context) func() {
		count := map[model.EndpointKey]uint32{}
		cpu, err := e.measure(func() error {
			for _, list := range endpoints {
				for _, k := range list {
					count[k] = 0
				}
			}
			return add(ctx, count)
		})
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
	now := e.planNow()
	e.signals.open = outcomes.NewOpen(now, count, e.signals.tracker)
	if e.Recorder != nil {
		e.Recorder.OnConnections(now, count)
	}
	e.Observer.OnEvent(Event{Kind: ConnectionsCounted, At: s.lastAt, Duration: cpu, Count: len(count)})
}

// ConnectionsAge implements policy.Signals.
func (g *signals) ConnectionsAge(now time.Time) (time.Duration, bool) {
	return g.open.Age(now)
}

// Connections implements policy.Signals.
func (g *signals) Connections(k model.EndpointKey) (uint32, bool) {
	return g.open.Connections(k, g.tracker)
}
