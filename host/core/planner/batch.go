package planner

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// targetStepTime is how long a step (planning and programming) may take that does as much as a Plan allows. A change that arrives
// meanwhile waits for its end, and is then programmed first.
const targetStepTime = 1500 * time.Microsecond

// AdaptStep adapts how much a Plan does to the duration of the last step, planning and programming.
func (p *Planner) AdaptStep(took time.Duration) {
	switch {
	case !p.full: // its duration says nothing about larger ones
	case took > targetStepTime:
		p.stepCost = max(p.stepCost*3/4, minStepCost)
	case took < targetStepTime/2:
		p.stepCost = min(p.stepCost*5/4, maxStepCost)
	}
}

// PlanInBatches bounds the duration of a Plan, see AdaptStep. The first one does everything. When Services remain, Result.RequeueAt is
// now.
func (p *Planner) PlanInBatches() { p.inBatches = true }

// nameQueue lists Services, oldest first.
type nameQueue struct {
	queue  []model.Name // may contain names that are no longer in queued
	queued map[model.Name]bool
}

func (q *nameQueue) push(name model.Name) {
	if !q.queued[name] {
		if q.queued == nil {
			q.queued = map[model.Name]bool{}
		}
		q.queued[name], q.queue = true, append(q.queue, name)
	}
}

// enqueueDue schedules a Service whose requeue time has passed or whose plugin has answered.
func (p *Planner) enqueueDue(name model.Name) {
	if !p.planAgain(name) && !p.changed.has(name) {
		p.due.push(name)
	}
}

// enqueueDeferred schedules a Service that shared state affects.
func (p *Planner) enqueueDeferred(name model.Name) {
	if !p.planAgain(name) && !p.changed.has(name) && !p.due.queued[name] {
		p.deferred.push(name)
	}
}

// enqueueShadow schedules a Service because of the shadow of its policy.
func (p *Planner) enqueueShadow(name model.Name) {
	if !p.planAgain(name) && !p.changed.has(name) && !p.due.queued[name] && !p.deferred.queued[name] {
		p.shadows.push(name)
	}
}

// planAgain makes another round follow if one of the Service is unfinished, and reports whether one is.
func (p *Planner) planAgain(name model.Name) bool {
	s := p.services[name]
	if s == nil || s.round == nil {
		return false
	}
	s.round.again = true
	return true
}

// planQueue plans the Services of a queue until the budget is spent.
func (p *Planner) planQueue(q *nameQueue, limit *budget, now time.Time, result *Result) {
	for i, name := range q.queue {
		if !q.queued[name] {
			continue // it is planned already
		}
		if p.stops(limit) {
			q.queue = q.queue[i:]
			return
		}
		p.planTurn(name, false, limit, now, result)
	}
	*q = nameQueue{} // clear would cost as much as the map's largest size ever
}

// pausedService is a Service whose round waits for answers of plugins.
type pausedService struct {
	name    model.Name
	state   *serviceState
	changed bool // it is planned because it has changed
}

// planTurn gives a Service a turn.
func (p *Planner) planTurn(name model.Name, changed bool, limit *budget, now time.Time, result *Result) {
	turn := limit.begin()
	if p.planService(name, now, result, turn) {
		result.Planned++
	} else if s := p.services[name]; s != nil && s.round != nil && s.round.paused {
		p.paused = append(p.paused, pausedService{name, s, changed})
		p.asking += limit.used(turn)
	} else {
		p.unfinished.push(name)
	}
	limit.end(turn)
}

// planPaused gives the Services whose rounds wait for answers of plugins another turn, with those that are there, once none asks again: what the
// others program would otherwise use up the budget of a Service with a longer chain.
func (p *Planner) planPaused(limit *budget, now time.Time, result *Result) {
	asks := false
	for _, s := range p.paused {
		asks = p.resume(s.state.round, now, limit) || asks
	}
	if asks {
		return
	}
	paused := p.paused
	p.paused = nil
	for _, s := range paused {
		switch {
		case !limit.spent():
			p.planTurn(s.name, s.changed, limit, now, result)
		case s.changed:
			p.changed.push(s.name)
		default:
			p.unfinished.push(s.name)
		}
	}
}

// replanAll schedules all Services. Those that have not been planned are scheduled already.
func (p *Planner) replanAll() { p.sweep.begin(len(p.services), true) }
