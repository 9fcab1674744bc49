package engine

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// reset ends connections whose drain deadline has passed.
func (e *Engine) reset(ctx context.Context, resets []plan.Reset) {
	if e.ConnTable == nil || len(resets) == 0 {
		return
	}
	begin := time.Now()
	n, err := e.ConnTable.Reset(ctx, resets, e.resetter())
	e.Observer.OnEvent(Event{Kind: ConnectionsReset, At: begin, Duration: time.Since(begin), Count: n.Connections, Omitted: n.Uncertain, Err: err})
	e.warnUncertain(n)
	if err != nil {
		e.Log.Error("resetting connections failed", "endpoints", len(resets), "first", resets[0].Endpoint, "err", err)
		return
	}
	e.Log.Info("reset connections", "endpoints", len(resets), "first", resets[0].Endpoint, "connections", n.Connections)
}

// resetter returns the backend if it has to be told of TCP connections to reset.
func (e *Engine) resetter() backend.Resetter {
	r, _ := e.Backend.(backend.Resetter)
	return r
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
