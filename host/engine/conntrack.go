package engine

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// staleFlows are UDP flows that must be deleted from the connection tracking table once the plan that makes them stale
// is programmed.
type staleFlows struct {
	flows   map[plan.Key]plan.StaleUDPFlows
	retryAt time.Time // after a failure
}

// reset ends connections whose drain deadline has passed.
func (e *Engine) reset(ctx context.Context, resets []plan.Reset) {
	if e.ConnTable == nil || len(resets) == 0 {
		return
	}
	begin := time.Now()
	n, err := e.ConnTable.Reset(ctx, resets)
	e.Observer.OnEvent(Event{Kind: ConnectionsReset, At: begin, Duration: time.Since(begin), Count: n.Connections, Omitted: n.Uncertain, Err: err})
	e.warnUncertain(n)
	if err != nil {
		e.Log.Error("resetting connections failed", "endpoints", len(resets), "first", resets[0].Endpoint, "err", err)
		return
	}
	e.Log.Info("reset connections", "endpoints", len(resets), "first", resets[0].Endpoint, "connections", n.Connections)
}

// warnUncertain logs when there begin or cease to be connections that may go on although they were reset.
func (e *Engine) warnUncertain(n plan.ResetCount) {
	switch {
	case n.Uncertain > 0 && !e.uncertain:
		e.Log.Warn("connections that were reset may go on: the data plane remembers no more of them", "connections", n.Uncertain)
	case n.Uncertain == 0 && n.Connections > 0 && e.uncertain:
		e.Log.Info("all connections that were reset are remembered again")
	}
	e.uncertain = n.Uncertain > 0 || e.uncertain && n.Connections == 0
}

// deleteStale deletes stale UDP flows, unless the data plane still lags behind the plan.
func (e *Engine) deleteStale(ctx context.Context, more []plan.StaleUDPFlows) {
	for _, s := range more {
		e.stale.flows[s.Frontend] = s
	}
	e.stale.retryAt = time.Time{}
	if e.ConnTable == nil || e.sync.full || len(e.stale.flows) == 0 {
		return
	}
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		e.deleteStaleOf(ctx, f)
	}
}

func (e *Engine) deleteStaleOf(ctx context.Context, f model.Family) {
	var list []plan.StaleUDPFlows
	for _, s := range e.stale.flows {
		if s.Frontend.Family() == f {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b plan.StaleUDPFlows) int { return a.Frontend.Compare(b.Frontend) })
	begin := time.Now()
	n, err := e.ConnTable.DeleteStaleUDP(ctx, list, e.Planner.Current().Global.NodePortAddrs)
	e.Observer.OnEvent(Event{Kind: StaleFlowsDeleted, Family: f, At: begin, Duration: time.Since(begin), Count: n, Err: err})
	if err != nil {
		if ctx.Err() == nil {
			e.stale.retryAt = time.Now().Add(maxBackoff)
			e.Log.Error("deleting stale UDP flows failed", "family", f, "err", err, "retry_after", maxBackoff)
		}
		return
	}
	for _, s := range list {
		delete(e.stale.flows, s.Frontend)
	}
	if n > 0 {
		e.Log.Info("deleted stale UDP flows", "family", f, "flows", n)
	}
}
