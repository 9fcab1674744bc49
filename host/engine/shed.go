package engine

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// shedTimeout bounds a step of the sheds.
const shedTimeout = 30 * time.Second

// shed starts the next step of the sheds in progress, if it is due and the data plane does not lag behind the plan: clients that
// reconnect must find the new rules. It brings planAt forward to the next one.
func (e *Engine) shed(ctx context.Context) {
	table, ok := e.ConnTable.(ConnShedder)
	if !ok || e.sync.full || e.Once {
		return
	}
	now, _ := e.clock.now()
	if sheds := e.Planner.Sheds(now); len(sheds) > 0 {
		tcp := e.resetter()
		e.sheds.start(ctx, shedTimeout, func(during context.Context) func() {
			begin := time.Now()
			n, deferred, err := table.Shed(during, sheds, tcp)
			took := time.Since(begin)
			return func() {
				e.shedDone(ctx, deferred, Event{Kind: ConnectionsShed, At: begin, Duration: took, Count: n.Connections, Omitted: n.Uncertain, Err: err})
			}
		})
	}
	e.planAt = earliest(e.planAt, e.Planner.NextSheds())
}

// shedDone records the end of a step.
func (e *Engine) shedDone(ctx context.Context, deferred []bool, event Event) {
	now, _ := e.clock.now()
	e.Planner.ShedsDone(now, event.Err == nil, deferred)
	e.Observer.OnEvent(event)
	e.warnUncertain(plan.ResetCount{Connections: event.Count, Uncertain: event.Omitted})
	switch {
	case event.Err != nil && ctx.Err() == nil:
		e.Log.Error("shedding connections failed", "connections", event.Count, "err", event.Err)
	case event.Count > 0:
		e.Log.Debug("shed connections", "connections", event.Count, "duration", event.Duration)
	}
}
