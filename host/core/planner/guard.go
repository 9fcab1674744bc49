package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// settleTime is how long after a Service has got another policy its connections count for a guard: those that are reported as unanswered
// may have begun 1.5 s before the reading, see outcomes.Grace.
const settleTime = 2 * time.Second

// guard is the guard of a policy with the Services that it concerns: those that the policy decides about when it is in force.
type guard struct {
	policy   string
	state    *policy.GuardState
	services map[model.Name]bool
	mark     uint64 // of the last change that was added
	blind    bool
}

// GuardChange is what has changed about the guard of a policy.
type GuardChange struct {
	Policy string
	Phase  policy.GuardPhase
	Blind  bool // nothing is known of connections
	Text   string
}

// GuardStatus is the guard of a policy.
type GuardStatus struct {
	Policy string
	State  policy.GuardState
	// Blind: nothing was known of connections for a window. What decides stays in force meanwhile.
	Blind bool
}

// String describes it.
func (g *GuardStatus) String() string {
	text := fmt.Sprintf("policy %s %s", g.Policy, &g.State)
	if g.Blind {
		text += "; blind: no outcomes of connections are known, and nothing changes until they are"
	}
	return text
}

func (g *guard) status() GuardStatus { return GuardStatus{g.policy, *g.state, g.blind} }

// refreshGuards sets the guards of the configuration. Without signals, in commands that plan once, there are none: policies with a guard
// are planned as if they were in force.
func (p *Planner) refreshGuards(now time.Time) {
	p.guardsDirty = false
	set, states := p.settings.Policies, p.evaluator.Guards
	before := p.guards
	p.guards = nil
	for _, q := range set.Guarded() {
		name := q.Name
		if p.evaluator.Signals == nil {
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
		g.state.Set(q.Guard, p.guardRevision(set, q), now)
		if g.state.Revision() != revision || g.state.Phase != phase {
			p.guardChanged(g)
		}
		p.guards = append(p.guards, g)
	}
	maps.DeleteFunc(states, func(name string, _ *policy.GuardState) bool {
		return !slices.ContainsFunc(p.guards, func(g *guard) bool { return g.policy == name })
	})
	for _, g := range before {
		if !slices.Contains(p.guards, g) {
			p.replanGuarded(g)
			for name := range g.services {
				s := p.services[name]
				s.guards = slices.DeleteFunc(slices.Clone(s.guards), func(h *guard) bool { return h == g })
			}
		}
	}
	p.suspendGuarded()
}

// guardRevision returns the revision of a policy with those that it has with the settings of bindings, "" while it is not known.
func (p *Planner) guardRevision(set *policy.Set, q *policy.Policy) string {
	all := []string{p.evaluator.Revision(q)}
	for i := range set.Bindings {
		if b := &set.Bindings[i]; b.Policy == q.Name && b.Applied != nil {
			all = append(all, p.evaluator.Revision(b.Applied))
		}
	}
	if slices.Contains(all, "") {
		return ""
	}
	return strings.Join(all, " ")
}

// suspendGuarded passes over the policies whose guard does not let them decide.
func (p *Planner) suspendGuarded() {
	set := p.settings.Policies
	for _, g := range p.guards {
		if set.Suspend(g.policy, !g.state.InForce()) {
			p.replanGuarded(g)
		}
	}
}

// replanGuarded plans the Services that a guard concerns again.
func (p *Planner) replanGuarded(g *guard) {
	for _, name := range slices.SortedFunc(maps.Keys(g.services), model.Name.Compare) {
		p.schedule(p.services[name], queue.Due)
	}
}

// guardChanged reports the state of a guard if it concerns Services.
func (p *Planner) guardChanged(g *guard) {
	if len(g.services) == 0 {
		return
	}
	status := g.status()
	p.guardChanges = append(p.guardChanges, GuardChange{g.policy, g.state.Phase, g.blind, status.String()})
}

// guardsOf returns the guards that concern a Service, and the name of the policy that applies without the one that a guard lets decide, "" for
// none.
func (p *Planner) guardsOf(svc *model.Service) (out []*guard, instead string) {
	if len(p.guards) == 0 {
		return nil, ""
	}
	decided, found := false, false
	for _, q := range p.evaluator.Applicable(p.settings.Policies, svc) {
		i := slices.IndexFunc(p.guards, func(g *guard) bool { return g.policy == q.Name })
		if i >= 0 {
			out = append(out, p.guards[i])
		}
		switch {
		case i >= 0 && !p.guards[i].state.InForce():
		case !decided:
			decided = true
		case !found:
			found, instead = true, q.Name
		}
	}
	return out, instead
}

// setGuards replaces the guards that concern a Service.
func (s *serviceState) setGuards(name model.Name, guards []*guard) {
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

// counts reports whether a Service's connections count for a guard, given the time at which they had settled.
func (g *guard) counts(s *serviceState, settled time.Time) bool {
	by, ok := s.counted.DecidedBy(settled)
	if !ok || (by == g.policy) != g.state.InForce() {
		return false
	}
	return by != g.policy || !s.shift.Unknown
}

// add adds the outcomes of an endpoint of a Service to the reading.
func (g *guard) add(s *serviceState, c *outcomes.Change) {
	o := s.shift.Of(c.Key)
	o.Answered, o.Refused, o.Unanswered = c.Answered, c.Refused, c.Unanswered
	g.state.Count(o)
}

// endReading ends a reading of the guards.
func (p *Planner) endReading(now time.Time, length time.Duration) {
	changed := false
	for _, g := range p.guards {
		if len(g.services) > 0 && g.state.Add(length, now) {
			changed = true
			p.guardChanged(g)
		}
	}
	if changed {
		p.suspendGuarded()
	}
}

// watchGuards finds out whether guards are blind, and returns when that may change without a reading, zero: never.
func (p *Planner) watchGuards(now time.Time) (at time.Time) {
	for _, g := range p.guards {
		blindAt := g.state.BlindAt()
		waits := len(g.services) > 0 && g.state.Revision() != "" && g.state.Phase != policy.GuardFallenBack
		if blind := waits && !now.Before(blindAt); blind != g.blind {
			g.blind = blind
			p.guardChanged(g)
		}
		if waits && !g.blind {
			at = firstOf(at, blindAt)
		}
	}
	return at
}

// firstOf returns the earlier of two times; zero is none.
func firstOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// reportGuards adds what has changed, and the state of the guards, to result.
func (p *Planner) reportGuards(result *Result) {
	result.Guards, p.guardChanges = p.guardChanges, nil
	for _, g := range p.guards {
		if len(g.services) > 0 {
			result.Totals.Guards = append(result.Totals.Guards, tally.GuardTotals{Policy: g.policy, Phase: g.state.Phase, Blind: g.blind})
		}
	}
}
