package planner

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// The batch size follows the duration of a step (planning and programming), so that a change which arrives during a step waits
// for about targetStepTime.
const (
	initialBatch   = 128
	minBatch       = 8
	maxBatch       = 2048
	targetStepTime = 20 * time.Millisecond
)

// AdaptBatch adapts the batch size to the duration of the last step, planning and programming. Call it after a Plan that left
// Services remaining.
func (p *Planner) AdaptBatch(took time.Duration) {
	switch {
	case took > 2*targetStepTime:
		p.batchSize = max(p.batchSize/2, minBatch)
	case took < targetStepTime/2:
		p.batchSize = min(p.batchSize*2, maxBatch)
	}
	switch {
	case took > targetStepTime/2:
		p.stepCost = max(p.stepCost/2, minStepCost)
	case took < targetStepTime/4:
		p.stepCost = min(p.stepCost*2, stepCost)
	}
}

// PlanInBatches bounds the duration of a Plan. It recomputes deferred Services in batches, see AdaptBatch, and of the Services that
// have changed as much as it does in some milliseconds, in turns. The first Plan does everything. When Services remain,
// Result.RequeueAt is now.
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

// planDeferred plans the Services of a queue until the batch is full, and returns how many have been planned in all.
func (p *Planner) planDeferred(q *nameQueue, now time.Time, result *Result, planned int) int {
	for i, name := range q.queue {
		if !q.queued[name] {
			continue // it is planned already
		}
		if p.batchFull(planned) {
			q.queue = q.queue[i:]
			result.Remaining += len(q.queued)
			return planned
		}
		p.planTurn(name, now, result)
		planned++
	}
	*q = nameQueue{} // clear would cost as much as the map's largest size ever
	return planned
}

// batchFull reports whether a Plan that has planned so many Services leaves the others to the next one.
func (p *Planner) batchFull(planned int) bool { return p.inBatches && planned >= p.batchSize }

// planTurn gives a Service a turn.
func (p *Planner) planTurn(name model.Name, now time.Time, result *Result) {
	var turn *budget
	if p.inBatches {
		turn = &budget{left: turnCost}
	}
	if p.planService(name, now, result, turn) {
		result.Planned++
		return
	}
	p.unfinished.push(name)
	result.Remaining++
}

// replanAll schedules all Services: before the first plan as changed, later in batches.
func (p *Planner) replanAll() {
	if !p.hasPlanned {
		for _, name := range slices.SortedFunc(maps.Keys(p.cluster.Services), model.Name.Compare) {
			p.markChanged(name)
		}
		return
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.cluster.Services), model.Name.Compare) {
		p.enqueueDeferred(name)
	}
}
