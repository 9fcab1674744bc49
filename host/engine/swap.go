package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/plan"
)

// swap is one under way.
type swap struct {
	to   backend.Backend
	from backend.Backend
	err  error
	done chan struct{}
}

// Swap has another backend take the place of the one in use, between two steps of the loop: it is given the whole plan,
// and only when it holds that is the other one no longer used. That one is returned, for the caller to take away what it
// has programmed, if need be, and to close. After an error the backend in use stays, and looks at everything again.
func (e *Engine) Swap(ctx context.Context, to backend.Backend) (from backend.Backend, err error) {
	s := &swap{to: to, done: make(chan struct{})}
	select {
	case e.swaps <- s:
		<-s.done
		return s.from, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.done:
		return nil, errors.New("the engine has stopped")
	}
}

func (e *Engine) swap(ctx context.Context, s *swap) {
	var report backend.Report
	var stuck *backend.PartialError
	if e.applied { // else nothing has been programmed, and the first step does it
		if report, s.err = s.to.Apply(ctx, e.Planner.Current(), nil); s.err != nil && !errors.As(s.err, &stuck) {
			s.err = fmt.Errorf("programming the other data plane: %w", s.err)
			e.whole = true
			return
		}
	}
	s.from, e.Backend = e.Backend, s.to
	e.whole, e.stuck, e.said = !e.applied, 0, ""
	e.retry, e.retryAt, e.againAt = 0, time.Time{}, time.Time{}
	if stuck != nil {
		s.err, e.stuck = nil, stuck.Frontends
		e.failed(ctx, "some frontends cannot be programmed; the others are", stuck)
	}
	if report.RequeueAfter > 0 {
		e.againAt = time.Now().Add(report.RequeueAfter)
	}
	clear(e.degraded)
	e.degradations(plan.Diff(&plan.Plan{}, e.Planner.Current()))
	e.Log.Info("another data plane holds the plan", "from", s.from.Caps().Name, "to", s.to.Caps().Name,
		"frontends", len(e.Planner.Current().Frontends), "messages", report.Messages)
}
