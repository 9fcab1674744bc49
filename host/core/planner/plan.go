package planner

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// work is a Plan that has begun.
type work struct {
	active bool
	result Result
	limit  *budget // nil: none
	begun  bool
	// changed: there were changed Services at the beginning; few: they are planned only as far as their namespaces have few of them.
	changed, few, mayPostpone bool
	divided                   bool // the part of the budget that is for the backlog has been given to it
}

// Plan brings the plan up to date. If plugins are to be called, it returns the calls, and nothing is changed yet: the caller makes them, passes
// those that are answered soon to Deliver, and calls Plan again with the same time, which goes on. The calls that are not answered by then are for
// a later Deliver. Until then, and while a policy fails, the last good or the default decision is in force. now must not be the wall clock,
// which can be set: the times of all decisions, requeues and resets are by this clock.
func (p *Planner) Plan(now time.Time) Result {
	if !p.cluster.Synced {
		return Result{Delta: &plan.Delta{}}
	}
	w := &p.work
	if !w.active {
		p.beginPlan(w, now)
	}
	for {
		p.planPaused(w.limit, now, &w.result)
		p.planServices(w, now)
		if calls := p.evaluator.Calls(); len(calls) > 0 {
			p.asking = 0
			return Result{Calls: calls, Delta: &plan.Delta{}}
		}
		if len(p.paused) == 0 {
			return p.endPlan(w, now)
		}
	}
}

// beginPlan begins a Plan.
func (p *Planner) beginPlan(w *work, now time.Time) {
	if p.nodeDirty {
		p.refresh()
		p.counters.nodeStatus = p.nodeStatus()
	}
	if p.apiServer {
		p.apiServer = false
		p.builder.SetReserved(apiServerKeys(p.cluster.Slices[apiServerService]))
	}
	if p.guardsDirty {
		p.refreshGuards(now)
	}
	p.enqueueExpired(now.UnixMilli())
	w.active = true
	if p.hasPlanned && p.inBatches {
		w.limit = &budget{left: p.stepCost * 3 / 4, turn: max(1, p.stepCost/4)}
	}
	if !p.hasPlanned {
		p.hasPlanned = true
		p.evaluator.Prune(func(name model.Name) bool { return p.cluster.Services[name] != nil })
	}
}

// endPlan completes the result of a Plan.
func (p *Planner) endPlan(w *work, now time.Time) Result {
	result := &w.result
	p.full, p.asking = w.limit.spent(), 0
	if !p.builder.Reassess(w.limit.add(p.stepCost / 4)) {
		p.full = true
		result.Remaining++
	}
	result.Remaining += p.changed.len() + p.unfinished.len() + len(p.due.queued) + len(p.deferred.queued) + p.sweep.left + len(p.answers) + len(p.shadows.queued)
	result.Warnings, p.newWarnings = p.newWarnings, nil
	result.Delta = p.builder.Take()
	p.addStaleUDP(result)
	result.NewConflicts = p.builder.NewConflicts()
	for _, d := range slices.Concat(result.NewConflicts, result.NewlyLimited) {
		result.Warnings = append(result.Warnings, "Service "+d.String())
	}
	p.count(result)
	p.reportConnections(result)
	p.reportPolicies(result)
	result.RequeueAt = firstOf(p.nextRequeue(), p.watchGuards(now))
	p.reportGuards(result)
	if result.Remaining > 0 {
		result.RequeueAt = now
	}
	out := *result
	*w = work{}
	return out
}

// stops reports whether a Plan begins with no other Service before it has the answers of plugins, or at all. Of its budget, as much as twice what
// it has spent on Services that wait for answers is left for these: recording the answers and changing their frontends costs some more than asking.
func (p *Planner) stops(limit *budget) bool {
	return limit.spent() || p.evaluator.Full() || limit != nil && p.asking > 0 && 2*p.asking >= limit.left
}

// planServices plans the Services that have changed, then others, as far as the budget of a Plan allows. While there is a backlog, a
// Plan with changed Services does not work on it, but the next one does: so a change is programmed in a short step of its own. Many changed
// Services are a backlog, too, for those of namespaces with few.
func (p *Planner) planServices(w *work, now time.Time) {
	limit, result := w.limit, &w.result
	if len(p.paused) > 0 {
		return // first what has begun
	}
	if !w.begun {
		w.begun = true
		w.changed, w.mayPostpone = p.changed.len() > 0, limit != nil && !p.postponed
		w.few = w.mayPostpone && p.changed.len() > manyChanged && p.changed.few(fewChanged) >= 0
	}
	if p.postponed = w.few; w.few {
		for turn := p.changed.few(fewChanged); turn >= 0 && !p.stops(limit); turn = p.changed.few(fewChanged) {
			p.planTurn(p.changed.popOf(turn), true, limit, now, result)
		}
		return
	}
	p.takeTurns(&p.changed, limit, now, result)
	if p.postponed = w.mayPostpone && w.changed && p.hasBacklog(); !p.postponed {
		p.planBacklog(w, now)
	}
}

// If more than manyChanged Services have changed, those of namespaces with up to fewChanged come first.
const (
	manyChanged = 16
	fewChanged  = 4
)

// hasBacklog reports whether work waits, except for shadows.
func (p *Planner) hasBacklog() bool {
	return p.unfinished.len()+len(p.due.queued)+len(p.deferred.queued)+p.sweep.left+len(p.answers) > 0
}

// planBacklog divides what is left of the budget, at least a quarter of all, among the kinds of work that wait. What one
// kind does not use is for those after it; another one is the first each time.
func (p *Planner) planBacklog(w *work, now time.Time) {
	limit, result, more := w.limit, &w.result, p.stepCost/4
	if w.divided {
		more = 0
	}
	w.divided = true
	if len(p.answers) > 0 {
		p.continueChains(limit.add(more), now)
	}
	var kinds []func()
	if p.unfinished.len() > 0 {
		kinds = append(kinds, func() { p.planUnfinished(limit, now, result) })
	}
	for _, q := range []*nameQueue{&p.due, &p.deferred} {
		if len(q.queued) > 0 {
			kinds = append(kinds, func() { p.planQueue(q, limit, now, result) })
		}
	}
	if p.sweep.left > 0 {
		kinds = append(kinds, func() { p.planSweep(limit, now, result) })
	}
	share := 0
	if limit != nil && len(kinds) > 0 {
		share = (max(limit.left, 0) + more) / len(kinds)
		limit.left = 0
	}
	for i := range 2 * len(kinds) {
		if i < len(kinds) {
			limit.add(share)
		}
		if !p.stops(limit) {
			kinds[(p.rotation+i)%len(kinds)]()
		}
	}
	if limit != nil { // otherwise each kind is done, and the order stays the same
		p.rotation++
	}
	p.planQueue(&p.shadows, limit, now, result) // enforced chains come first
}

// planUnfinished gives the Services that take more than one turn their turns, without a limit until they are done.
func (p *Planner) planUnfinished(limit *budget, now time.Time, result *Result) {
	for p.unfinished.len() > 0 && !p.stops(limit) {
		p.takeTurns(&p.unfinished, limit, now, result)
	}
}

// takeTurns gives each Service in a queue a turn, until the budget is spent.
func (p *Planner) takeTurns(q *fairQueue, limit *budget, now time.Time, result *Result) {
	for n := q.len(); n > 0 && !p.stops(limit); n-- {
		p.planTurn(q.pop(), q == &p.changed, limit, now, result)
	}
}
