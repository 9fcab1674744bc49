package planner

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner/cost"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
)

// pausedService is a Service whose round waits for answers of plugins.
type pausedService struct {
	*serviceState
	class queue.Class // for which it is planned
}

// planTurn gives a Service that was taken from the queue a turn.
func (p *Planner) planTurn(s *serviceState, of queue.Class, limit *cost.Budget, now time.Time, result *Result) {
	turn := limit.Begin()
	switch done := p.planService(s, now, result, turn); {
	case done && s.planned:
		p.queue.Settle(&s.place)
		result.Planned++
	case done:
		p.queue.Drop(&s.place)
		p.deleteNewcomer(s.place.Name)
		result.Planned++
	case s.round != nil && s.round.paused:
		p.paused = append(p.paused, pausedService{s, of})
		p.asking += limit.Used(turn)
	default:
		p.queue.Push(&s.place, queue.Due)
	}
	switch used := limit.Used(turn); of {
	case queue.Due:
		p.dueAhead += used
	case queue.Swept:
		p.dueAhead -= used
	}
	limit.End(turn)
}

// planPaused gives the Services whose rounds wait for answers of plugins another turn, with those that are there, once none asks
// again: what the others program would otherwise use up the budget of a Service with a longer chain.
func (p *Planner) planPaused(limit *cost.Budget, now time.Time, result *Result) {
	asks := false
	for _, s := range p.paused {
		asks = p.resume(s.round, now, limit) || asks
	}
	if asks {
		return
	}
	paused := p.paused
	p.paused = nil
	for _, s := range paused {
		if limit.Spent() {
			p.queue.Push(&s.place, min(s.class, queue.Due))
		} else {
			p.planTurn(s.serviceState, s.class, limit, now, result)
		}
	}
}
