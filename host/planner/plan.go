package planner

import (
	"maps"
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
	p.deferExpired(now.UnixMilli())
	if !p.hasPlanned {
		p.hasPlanned = true
		p.evaluator.Prune(func(port model.PortName) bool { return p.cluster.Services[port.Service] != nil })
	}
	result := Result{Warnings: p.newWarnings}
	p.newWarnings = nil
	changed := p.sortedDirty()
	for _, name := range changed {
		p.planService(name, now, &result)
	}
	result.Planned = len(changed)
	for _, name := range changed {
		delete(p.deferred, name)
	}
	p.planDeferred(now, &result)
	if len(p.dirty) > 0 {
		p.dirty = map[model.Name]bool{} // clear would cost as much as the map's largest size ever
	}
	result.Delta = p.builder.Take()
	result.NewConflicts = p.builder.NewConflicts()
	for _, d := range result.NewConflicts {
		result.Warnings = append(result.Warnings, "Service "+d.String())
	}
	p.count(&result)
	result.RequeueAt = p.nextRequeue()
	if result.Remaining > 0 {
		result.RequeueAt = now
	}
	return result
}

// sortedDirty returns the Services that have changed, by name. Those without a policy come first so that they do not wait for
// plugins.
func (p *Planner) sortedDirty() []model.Name {
	var plain, decided []model.Name
	for _, name := range slices.SortedFunc(maps.Keys(p.dirty), model.Name.Compare) {
		if svc := p.cluster.Services[name]; svc != nil {
			if pol, _ := p.settings.Policies.For(svc); pol != nil {
				decided = append(decided, name)
				continue
			}
		}
		plain = append(plain, name)
	}
	return append(plain, decided...)
}
