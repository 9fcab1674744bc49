package planner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
)

// waitQueue lists Services with a plugin call that was refused because too many calls of the plugin are queued. Namespaces take
// turns; within a namespace the oldest comes first.
type waitQueue struct {
	namespaces []string
	names      map[string][]model.Name // by namespace; may contain names that are no longer in waiting
	waiting    map[model.Name]bool
}

// admits reports whether a call of a step is accepted for a Service: while Services wait, only that whose turn it is. Otherwise a
// Service with many ports, or one that changes all the time, would take all the room.
func (p *Planner) admits(plugin string, name model.Name) bool {
	q := p.waiting[plugin]
	if q == nil || len(q.waiting) == 0 {
		return true
	}
	s := p.services[name]
	return s != nil && s.turn == plugin
}

// waitForRoom makes a Service wait for its turn, instead of planning it, if the first plugin of its policy would refuse a call. It reports
// whether it does.
func (p *Planner) waitForRoom(name model.Name, s *serviceState) bool {
	svc := p.cluster.Services[name]
	if svc == nil {
		return false
	}
	of, _ := p.evaluator.Choose(p.settings.Policies, svc)
	if of == nil || len(of.Steps) == 0 {
		return false
	}
	plugin := of.Steps[0].Plugin
	if p.admits(plugin, name) && p.evaluator.Room(plugin, name.Namespace) {
		return false
	}
	if !slices.Contains(s.refused, plugin) {
		p.setRefused(name, s, append(slices.Clone(s.refused), plugin))
	}
	return true
}

// setRefused records the plugins that have refused calls for a Service.
func (p *Planner) setRefused(name model.Name, s *serviceState, plugins []string) {
	for _, plugin := range s.refused {
		if !slices.Contains(plugins, plugin) {
			delete(p.waiting[plugin].waiting, name)
		}
	}
	for _, plugin := range plugins {
		q := p.waiting[plugin]
		if q == nil {
			q = &waitQueue{names: map[string][]model.Name{}, waiting: map[model.Name]bool{}}
			p.waiting[plugin] = q
		}
		if q.waiting[name] {
			continue // keeps its place
		}
		q.waiting[name] = true
		if q.names[name.Namespace] == nil {
			q.namespaces = append(q.namespaces, name.Namespace)
		}
		q.names[name.Namespace] = append(q.names[name.Namespace], name)
	}
	s.refused = plugins
}

// pop removes the first Service of a namespace and returns it. It returns false, and forgets the namespace, when there is none.
func (q *waitQueue) pop(namespace string) (model.Name, bool) {
	names := q.names[namespace]
	for i, name := range names {
		if q.waiting[name] {
			delete(q.waiting, name)
			q.names[namespace] = names[i+1:]
			return name, true
		}
	}
	delete(q.names, namespace)
	return model.Name{}, false
}

// nextWaiting returns the first plugin, shadows last, that accepts a call for a Service that waits, and the index of its namespace;
// "" for none.
func (p *Planner) nextWaiting() (plugin string, namespace int) {
	for plugin, q := range p.waiting {
		if len(q.waiting) == 0 {
			delete(p.waiting, plugin)
		}
	}
	for _, plugin := range slices.SortedFunc(maps.Keys(p.waiting), shadowsLast) {
		hasRoom := func(namespace string) bool { return p.evaluator.Room(plugin, namespace) }
		if i := slices.IndexFunc(p.waiting[plugin].namespaces, hasRoom); i >= 0 {
			return plugin, i
		}
	}
	return "", 0
}

// planWaiting plans Services whose plugin accepts calls again, until the budget is spent.
func (p *Planner) planWaiting(limit *budget, now time.Time, result *Result) {
	for !limit.spent() {
		plugin, i := p.nextWaiting()
		if plugin == "" {
			return
		}
		q := p.waiting[plugin]
		namespace := q.namespaces[i]
		q.namespaces = slices.Delete(q.namespaces, i, i+1)
		name, ok := q.pop(namespace)
		if !ok {
			continue
		}
		q.namespaces = append(q.namespaces, namespace)
		s := p.services[name]
		s.refused = slices.DeleteFunc(s.refused, func(r string) bool { return r == plugin })
		s.turn = plugin
		if !p.planAgain(name) {
			p.planTurn(name, limit, now, result)
		}
	}
}

// shadowsLast orders the names of plugins.
func shadowsLast(a, b string) int {
	_, x := policy.CutShadow(a)
	_, y := policy.CutShadow(b)
	return cmp.Or(oneIf(x)-oneIf(y), cmp.Compare(a, b))
}
