package planner

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// guards are the guards of the policies in force.
//
// Each Service has those that concern it, and each of them the Service.
type guards struct {
	*world
	list    []*guard      // sorted by policy
	dirty   bool          // list is out of date
	changes []GuardChange // that no Result has reported
}

// refresh sets the guards of the configuration. Without signals, in commands that plan once, there are none: policies with a
// guard are planned as if they were in force.
func (x *guards) refresh(now time.Time) {
	x.dirty = false
	set, states := x.settings.Policies, x.evaluator.Guards
	before := x.list
	x.list = nil
	for _, q := range set.Guarded() {
		name := q.Name
		if x.evaluator.Signals == nil {
			break
		}
		g := &guard{policy: name, services: map[model.Name]bool{}}
		if i := slices.IndexFunc(before, func(b *guard) bool { return b.policy == name }); i >= 0 {
			g = before[i]
		}
		if g.state = states[name]; g.state == nil {
			g.state = &policy.GuardState{}
			states[name] = g.state
		}
		revision, phase := g.state.Revision(), g.state.Phase
		g.state.Set(q.Guard, x.revision(set, q), now)
		if g.state.Revision() != revision || g.state.Phase != phase {
			x.changed(g)
		}
		x.list = append(x.list, g)
	}
	maps.DeleteFunc(states, func(name string, _ *policy.GuardState) bool {
		return !slices.ContainsFunc(x.list, func(g *guard) bool { return g.policy == name })
	})
	for _, g := range before {
		if !slices.Contains(x.list, g) {
			x.replan(g)
			for name := range g.services {
				s := x.services[name].policy
				s.guards = slices.DeleteFunc(slices.Clone(s.guards), func(h *guard) bool { return h == g })
			}
		}
	}
	x.suspend()
}

// revision returns the revision of a policy with those that it has with the settings of bindings, "" while it is not known.
func (x *guards) revision(set *policy.Set, q *policy.Policy) string {
	all := []string{x.evaluator.Revision(q)}
	for i := range set.Bindings {
		if b := &set.Bindings[i]; b.Policy == q.Name && b.Applied != nil {
			all = append(all, x.evaluator.Revision(b.Applied))
		}
	}
	if slices.Contains(all, "") {
		return ""
	}
	return strings.Join(all, " ")
}

// suspend passes over the policies whose guard does not let them decide.
func (x *guards) suspend() {
	set := x.settings.Policies
	for _, g := range x.list {
		if set.Suspend(g.policy, !g.state.InForce()) {
			x.replan(g)
		}
	}
}

// replan plans the Services that a guard concerns again.
func (x *guards) replan(g *guard) {
	for _, name := range slices.SortedFunc(maps.Keys(g.services), model.Name.Compare) {
		x.schedule(x.services[name], queue.Due)
	}
}

// changed reports the state of a guard if it concerns Services.
func (x *guards) changed(g *guard) {
	if len(g.services) == 0 {
		return
	}
	status := g.status()
	x.changes = append(x.changes, GuardChange{g.policy, g.state.Phase, g.blind, status.String()})
}

// of returns the guards that concern a Service, and the name of the policy that applies without the one that a guard lets decide,
// "" for none.
func (x *guards) of(svc *model.Service) (out []*guard, instead string) {
	if len(x.list) == 0 {
		return nil, ""
	}
	decided, found := false, false
	for _, q := range x.evaluator.Applicable(x.settings.Policies, svc) {
		i := slices.IndexFunc(x.list, func(g *guard) bool { return g.policy == q.Name })
		if i >= 0 {
			out = append(out, x.list[i])
		}
		switch {
		case i >= 0 && !x.list[i].state.InForce():
		case !decided:
			decided = true
		case !found:
			found, instead = true, q.Name
		}
	}
	return out, instead
}

// endReading ends a reading of the guards.
func (x *guards) endReading(now time.Time, length time.Duration) {
	changed := false
	for _, g := range x.list {
		if len(g.services) > 0 && g.state.Add(length, now) {
			changed = true
			x.changed(g)
		}
	}
	if changed {
		x.suspend()
	}
}

// watch finds out whether guards are blind, and returns when that may change without a reading, zero: never.
func (x *guards) watch(now time.Time) (at time.Time) {
	for _, g := range x.list {
		blindAt := g.state.BlindAt()
		waits := len(g.services) > 0 && g.state.Revision() != "" && g.state.Phase != policy.GuardFallenBack
		if blind := waits && !now.Before(blindAt); blind != g.blind {
			g.blind = blind
			x.changed(g)
		}
		if waits && !g.blind {
			at = firstOf(at, blindAt)
		}
	}
	return at
}

// report adds what has changed, and the state of the guards, to result.
func (x *guards) report(result *Result) {
	result.Guards, x.changes = x.changes, nil
	for _, g := range x.list {
		if len(g.services) > 0 {
			result.Totals.Guards = append(result.Totals.Guards, tally.GuardTotals{Policy: g.policy, Phase: g.state.Phase, Blind: g.blind})
		}
	}
}

// setGuards replaces the guards that concern a Service.
func (s *policyState) setGuards(name model.Name, guards []*guard) {
	if slices.Equal(s.guards, guards) {
		return
	}
	for _, g := range s.guards {
		delete(g.services, name)
	}
	for _, g := range guards {
		g.services[name] = true
	}
	s.guards = guards
}

// firstOf returns the earlier of two times; zero is none.
func firstOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
