package planner

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
)

// Plan brings the plan up to date. While a policy fails, the last good or the default decision stays in force. now must not be the
// wall clock, which can be set: the times of all decisions, requeues and resets are by this clock.
func (p *Planner) Plan(now time.Time) Result {
	if !p.cluster.Synced {
		return Result{Delta: &plan.Delta{}}
	}
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
	first := !p.hasPlanned
	if first {
		p.hasPlanned = true
		p.evaluator.Prune(func(name model.Name) bool { return p.cluster.Services[name] != nil })
	}
	result := Result{}
	p.planServices(now, &result, first)
	result.Warnings, p.newWarnings = p.newWarnings, nil
	result.Delta = p.builder.Take()
	p.addStaleUDP(&result)
	result.NewConflicts = p.builder.NewConflicts()
	for _, d := range slices.Concat(result.NewConflicts, result.NewlyLimited) {
		result.Warnings = append(result.Warnings, "Service "+d.String())
	}
	p.count(&result)
	p.reportConnections(&result)
	p.reportPolicies(&result)
	result.RequeueAt = firstOf(p.nextRequeue(), p.watchGuards(now))
	p.reportGuards(&result)
	if result.Remaining > 0 {
		result.RequeueAt = now
	}
	return result
}

// planServices plans the Services that have changed, then others, as far as the budget of a Plan allows. While there is a backlog, a
// Plan with changed Services does not work on it, but the next one does: so a change is programmed in a short step of its own. Many changed
// Services are a backlog, too, for those of namespaces with few.
func (p *Planner) planServices(now time.Time, result *Result, all bool) {
	var limit *budget
	if !all && p.inBatches {
		limit = &budget{turn: max(1, p.stepCost/4)}
	}
	limit.add(p.stepCost * 3 / 4)
	changed, mayPostpone := p.changed.len() > 0, limit != nil && !p.postponed
	if p.postponed = mayPostpone && p.takeFew(limit, now, result); !p.postponed {
		p.takeTurns(&p.changed, limit, now, result)
		if p.postponed = mayPostpone && changed && p.hasBacklog(); !p.postponed {
			p.planBacklog(limit, now, result)
		}
	}
	p.full = limit.spent()
	if !p.builder.Reassess(limit.add(p.stepCost / 4)) {
		p.full = true
		result.Remaining++
	}
	result.Remaining += p.changed.len() + p.unfinished.len() + len(p.due.queued) + len(p.deferred.queued) + p.sweep.left + len(p.answers) + len(p.shadows.queued)
	if plugin, _ := p.nextWaiting(); plugin != "" {
		result.Remaining++
	}
}

// If more than manyChanged Services have changed, those of namespaces with up to fewChanged come first.
const (
	manyChanged = 16
	fewChanged  = 4
)

// takeFew gives the changed Services of namespaces with few of them a turn, and reports whether there are any, if many have changed.
func (p *Planner) takeFew(limit *budget, now time.Time, result *Result) (found bool) {
	if p.changed.len() <= manyChanged {
		return false
	}
	for turn := p.changed.few(fewChanged); turn >= 0 && !limit.spent(); turn = p.changed.few(fewChanged) {
		p.planTurn(p.changed.popOf(turn), limit, now, result)
		found = true
	}
	return found
}

// hasBacklog reports whether work waits, except for shadows.
func (p *Planner) hasBacklog() bool {
	if p.unfinished.len()+len(p.due.queued)+len(p.deferred.queued)+p.sweep.left+len(p.answers) > 0 {
		return true
	}
	for plugin := range p.waiting {
		if _, shadow := policy.CutShadow(plugin); !shadow {
			return true
		}
	}
	return false
}

// planBacklog divides what is left of the budget, at least a quarter of all, among the kinds of work that wait. What one
// kind does not use is for those after it; another one is the first each time.
func (p *Planner) planBacklog(limit *budget, now time.Time, result *Result) {
	if len(p.answers) > 0 {
		p.continueChains(limit.add(p.stepCost/4), now)
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
	if len(p.waiting) > 0 {
		kinds = append(kinds, func() { p.planWaiting(limit, now, result) })
	}
	share := 0
	if limit != nil && len(kinds) > 0 {
		share = (max(limit.left, 0) + p.stepCost/4) / len(kinds)
		limit.left = 0
	}
	for i := range 2 * len(kinds) {
		if i < len(kinds) {
			limit.add(share)
		}
		if !limit.spent() {
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
	for p.unfinished.len() > 0 && !limit.spent() {
		p.takeTurns(&p.unfinished, limit, now, result)
	}
}

// takeTurns gives each Service in a queue a turn, until the budget is spent.
func (p *Planner) takeTurns(q *fairQueue, limit *budget, now time.Time, result *Result) {
	for n := q.len(); n > 0 && !limit.spent(); n-- {
		p.planTurn(q.pop(), limit, now, result)
	}
}
