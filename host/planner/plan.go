package planner

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
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
	result := Result{Warnings: p.newWarnings}
	p.newWarnings = nil
	p.planChanged(now, &result, first)
	planned := p.planDeferred(&p.due, now, &result, 0)
	planned = p.planDeferred(&p.deferred, now, &result, planned)
	planned = p.planWaiting(now, &result, planned)
	p.planDeferred(&p.shadows, now, &result, planned)
	result.Delta = p.builder.Take()
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

// planChanged plans the Services that have changed, of which it does as much as fits the budget of a Plan. A Service that takes
// more than its turn continues when the others have had theirs; a quarter of the budget is for such Services.
func (p *Planner) planChanged(now time.Time, result *Result, all bool) {
	var limit *budget
	if !all && p.inBatches {
		limit = &budget{}
	}
	p.takeTurns(&p.changed, limit.add(p.stepCost*3/4), now, result)
	limit.add(p.stepCost / 4)
	for p.unfinished.len() > 0 && !limit.spent() { // without a limit, until all are done
		p.takeTurns(&p.unfinished, limit, now, result)
	}
	if !p.builder.Reassess(limit.add(p.stepCost / 4)) {
		result.Remaining++
	}
	result.Remaining += p.changed.len() + p.unfinished.len()
}

// takeTurns gives each Service in a queue a turn, until the budget is spent.
func (p *Planner) takeTurns(q *fairQueue, limit *budget, now time.Time, result *Result) {
	for n := q.len(); n > 0 && !limit.spent(); n-- {
		name := q.pop()
		turn := limit.turn()
		if p.planService(name, now, result, turn) {
			result.Planned++
		} else {
			p.unfinished.push(name)
		}
		limit.end(turn)
	}
}
