package planner

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner/cost"
)

// pausedService is a Service whose round waits for answers of plugins.
type pausedService struct {
	*serviceState
	class class // for which it is planned
}

// planTurn gives a Service that was taken from the queue a turn.
func (p *Planner) planTurn(s *serviceState, of class, limit *cost.Budget, now time.Time, result *Result) {
	turn := limit.Begin()
	switch done := p.planService(s, now, result, turn); {
	case done && s.planned:
		p.queue.settle(&s.place)
		result.Planned++
	case done:
		p.queue.drop(&s.place)
		p.deleteNewcomer(s.place.name)
		result.Planned++
	case s.round != nil && s.round.paused:
		p.paused = append(p.paused, pausedService{s, of})
		p.asking += limit.Used(turn)
	default:
		p.queue.push(&s.place, due)
	}
	switch used := limit.Used(turn); of {
	case due:
		p.dueAhead += used
	case swept:
		p.dueAhead -= used
	}
	limit.End(turn)
}

// planPaused gives the Services whose rounds wait for answers of plugins another turn, with those that are there, once none asks again: what the
// others program would otherwise use up the budget of a Service with a longer chain.
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
			p.queue.push(&s.place, min(s.class, due))
		} else {
			p.planTurn(s.serviceState, s.class, limit, now, result)
		}
	}
}
