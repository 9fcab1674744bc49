package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend"
)

type swapRequest struct {
	to   backend.Backend
	from backend.Backend // result
	err  error           // result
	done chan struct{}
}

// Swap replaces the backend between two steps. The new backend is programmed with the whole plan first, then the old one
// is returned: the caller removes what it has programmed and closes it. After an error the old backend stays in use and
// does a full sync.
func (e *Engine) Swap(ctx context.Context, to backend.Backend) (from backend.Backend, err error) {
	s := &swapRequest{to: to, done: make(chan struct{})}
	select {
	case e.swaps <- s:
		<-s.done
		return s.from, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.done:
		return nil, errStopped
	}
}

func (e *Engine) swap(ctx context.Context, s *swapRequest) {
	var report backend.Report
	var partial *backend.PartialError
	e.Planner.SetCaps(s.to.Caps())
	if e.sync.done { // otherwise nothing has been programmed, and the first step does it
		if report, s.err = s.to.Apply(ctx, e.Planner.Current(), nil); s.err != nil && !errors.As(s.err, &partial) {
			s.err = fmt.Errorf("program backend %s: %w", s.to.Caps().Name, s.err)
			e.Planner.SetCaps(e.Backend.Caps())
			e.sync.full = true
			return
		}
	}
	s.from, e.Backend = e.Backend, s.to
	e.sync = syncState{full: !e.sync.done, done: e.sync.done}
	e.rebaseSignals()
	if partial != nil {
		s.err, e.sync.unprogrammed = nil, partial.Frontends
		e.applyFailed(ctx, "some frontends cannot be programmed; all others are", partial)
	}
	e.requeue(report)
	e.Log.Info("switched backend", "from", s.from.Caps().Name, "to", s.to.Caps().Name,
		"frontends", len(e.Planner.Current().Frontends), "netlink_messages", report.Messages)
}
