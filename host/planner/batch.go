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

// enqueueDeferred schedules a Service that has not changed itself.
func (p *Planner) enqueueDeferred(name model.Name) {
	if s := p.services[name]; s != nil && s.round != nil {
		s.round.again = true
		return // it is unfinished
	}
	if !p.deferred[name] && !p.changed.has(name) {
		p.deferred[name], p.deferredQueue = true, append(p.deferredQueue, name)
	}
}

// planDeferred plans deferred Services, oldest first, until the batch is full or plugin calls have to be deferred.
func (p *Planner) planDeferred(now time.Time, result *Result) {
	planned, shouldDefer := 0, p.evaluator.ShouldDefer
	for i, name := range p.deferredQueue {
		if !p.deferred[name] {
			continue // it has changed since and is planned already
		}
		if shouldDefer != nil && (planned == p.batchSize || shouldDefer()) {
			p.deferredQueue = p.deferredQueue[i:]
			result.Remaining += len(p.deferred)
			return
		}
		var turn *budget
		if shouldDefer != nil {
			turn = &budget{left: turnCost}
		}
		if p.planService(name, now, result, turn) {
			result.Planned++
		} else {
			p.unfinished.push(name)
			result.Remaining++
		}
		delete(p.deferred, name)
		planned++
	}
	if p.deferredQueue != nil {
		p.deferredQueue, p.deferred = nil, map[model.Name]bool{}
	}
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
