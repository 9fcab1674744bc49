package planner

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
)

// running is a Plan that waits for the answers of plugins, and what the next one has to know of it.
type running struct {
	work      work
	paused    []pausedService // Services whose rounds wait for them
	asking    int             // cost of the turns that have ended so since Result.Calls
	postponed bool            // the last Plan did not work on the backlog
	dueAhead  int             // by how much the cost of due Services is above that of swept ones while both wait
}

// work is a Plan that has begun.
type work struct {
	active bool
	result Result
	limit  *cost.Budget // nil: none
	begun  bool
	// changed: there were changed Services at the beginning; few: they are planned only as far as their namespaces have had no
	// turn.
	changed, few, mayPostpone bool
	backlog                   bool // it works on the backlog
}

// Plan brings the plan up to date. If plugins are to be called, it returns the calls, and nothing is changed yet: the caller
// makes them, passes those that are answered soon to Deliver, and calls Plan again with the same time, which goes on. The calls
// that are not answered by then are for a later Deliver. Until then, and while a policy fails, the last good or the default
// decision is in force. now must not be the wall clock, which can be set: the times of all decisions, requeues and resets are by
// this clock.
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
		p.node.refresh()
		p.nodeStatus = p.newNodeStatus()
	}
	if p.apiServer {
		p.apiServer = false
		p.claims.SetReserved(apiServerKeys(p.cluster.Slices[apiServerService]))
	}
	if p.guards.dirty {
		p.guards.refresh(now)
	}
	p.enqueueExpired(now.UnixMilli())
	w.active = true
	if p.hasPlanned && p.inBatches {
		w.limit = &cost.Budget{Left: p.stepCost * 3 / 4, Turn: max(1, p.stepCost/4)}
	}
	if !p.hasPlanned {
		p.hasPlanned = true
		p.evaluator.Prune(func(name model.Name) bool { return p.cluster.Services[name] != nil })
	}
}

// endPlan completes the result of a Plan.
func (p *Planner) endPlan(w *work, now time.Time) Result {
	result := &w.result
	p.full, p.asking = w.limit.Spent(), 0
	if !p.claims.Reassess(w.limit.Add(p.stepCost / 4)) {
		p.full = true
		result.Remaining++
	}
	result.Remaining += p.queue.Len() + len(p.answers)
	result.Warnings, p.newWarnings = p.newWarnings, nil
	result.Delta = p.claims.Take()
	p.addStaleUDP(result)
	result.NewConflicts = p.claims.NewConflicts()
	for _, d := range slices.Concat(result.NewConflicts, result.NewlyLimited) {
		result.Warnings = append(result.Warnings, "Service "+d.String())
	}
	p.count(result)
	result.Connections, result.PolicyConnections = p.outcomes.Report()
	result.PluginCounters = p.evaluator.Counters()
	result.RequeueAt = firstOf(p.nextRequeue(), p.guards.watch(now))
	p.guards.report(result)
	if result.Remaining > 0 {
		result.RequeueAt = now
	}
	out := *result
	*w = work{}
	return out
}

// count adds the changes of the plan to the counters and completes the result.
func (p *Planner) count(result *Result) {
	p.counters.Change(result.Delta.Changes)
	result.Totals = p.counters.Totals()
	result.Totals.Conflicts = p.claims.NumConflicts()
	if n := result.Totals.HintsIgnored[eligibility.HintsNodeWithoutZone]; n == 0 {
		p.zoneWarned = false
	} else if !p.zoneWarned && result.Remaining == 0 {
		p.zoneWarned = true
		result.Warnings = append(result.Warnings, fmt.Sprintf("Node %s: no label topology.kubernetes.io/zone: the topology hints of %d Services are not followed", p.settings.Node, n))
	}
	result.NodeStatus = p.nodeStatus
	result.Triggers, p.triggers = p.triggers, nil
}

// stops reports whether a Plan begins with no other Service before it has the answers of plugins, or at all. Of its budget, as
// much as twice what it has spent on Services that wait for answers is left for these: recording the answers and changing their
// frontends costs some more than asking.
func (p *Planner) stops(limit *cost.Budget) bool {
	return limit.Spent() || p.evaluator.Full() || limit != nil && p.asking > 0 && 2*p.asking >= limit.Left
}

// If more than manyChanged Services have changed, those of namespaces that have had no turn come first, in a Plan of their own.
const manyChanged = 16

// planServices takes Services from the queue and gives them turns, as far as the budget of a Plan allows: those that have
// changed, then the backlog. While there is a backlog, a Plan with changed Services does not work on it, but the next one does:
// so a change is programmed in a short step of its own. Many changed Services are a backlog, too, for those of other namespaces.
func (p *Planner) planServices(w *work, now time.Time) {
	if len(p.paused) > 0 {
		return // first what has begun
	}
	q := &p.queue
	if !w.begun {
		w.begun = true
		w.changed, w.mayPostpone = q.Waiting(queue.Changed) > 0, w.limit != nil && !p.postponed
		w.few = w.mayPostpone && q.Waiting(queue.Changed) > manyChanged && q.HasFresh()
		p.postponed = w.few
	}
	for {
		if w.backlog && len(p.answers) > 0 {
			p.continueChains(w.limit, now)
		}
		of := p.nextClass(w)
		if of == queue.None || w.limit.Spent() {
			if !p.beginBacklog(w) {
				return
			}
			continue
		}
		if p.stops(w.limit) {
			return
		}
		if w.few {
			q.PreferFresh()
		}
		s := p.stateOf(q.Take(of).Name)
		if of == queue.Swept {
			w.limit.Spend(cost.Look)
			if !q.Concerns(&s.place, s.decisions != nil) {
				q.BeginRound(&s.place)
				q.Settle(&s.place)
				continue
			}
		}
		p.planTurn(s, of, w.limit, now, &w.result)
	}
}

// nextClass returns from which class the next Service of a Plan is; none: there is no other.
func (p *Planner) nextClass(w *work) queue.Class {
	n := p.queue.Waiting
	if n(queue.Due) == 0 || n(queue.Swept) == 0 {
		p.dueAhead = 0
	}
	switch {
	case w.few && !p.queue.HasFresh():
		return queue.None
	case !w.backlog && n(queue.Changed) > 0:
		return queue.Changed
	case !w.backlog:
		return queue.None
	case n(queue.Due) > 0 && p.dueAhead <= 0:
		return queue.Due
	case n(queue.Swept) > 0:
		return queue.Swept
	case n(queue.ShadowDue) > 0: // enforced chains come first
		return queue.ShadowDue
	}
	return queue.None
}

// beginBacklog makes a Plan work on the backlog, for which at least a quarter of the budget is left, and reports whether it does.
func (p *Planner) beginBacklog(w *work) bool {
	if w.few || w.backlog {
		return false
	}
	if p.postponed = w.mayPostpone && w.changed && p.hasBacklog(); p.postponed {
		return false
	}
	w.backlog = true
	if w.limit != nil {
		w.limit.Left = max(w.limit.Left, 0) + p.stepCost/4
	}
	return true
}

// classNow returns the class of Services that have to be planned because of another one: this Plan still comes to it.
func (r *running) classNow() queue.Class {
	if r.work.backlog {
		return queue.Due
	}
	return queue.Changed
}

// hasBacklog reports whether work waits, except for shadows.
func (p *Planner) hasBacklog() bool {
	return p.queue.Waiting(queue.Due)+p.queue.Waiting(queue.Swept)+len(p.answers) > 0
}

// PlanNow is Plan with its calls made in the calling goroutine.
func (p *Planner) PlanNow(now time.Time) Result {
	for {
		result := p.Plan(now)
		if len(result.Calls) == 0 {
			return result
		}
		for _, c := range result.Calls {
			c.Do()
		}
		p.Deliver(result.Calls, now)
	}
}
