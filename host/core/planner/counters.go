package planner

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/service"
)

// counters maintains the Totals.
type counters struct {
	totals     Totals
	policies   map[string]*PolicyTotals
	fallbacks  map[string]*PluginFallback
	listsDirty bool // totals.Policies and totals.Fallbacks are out of date
	nodeStatus NodeStatus
	zoneWarned bool // a Result has warned about hints that this node cannot follow
	triggers   []Trigger
}

// replace replaces a Service's summary in the totals.
func (c *counters) replace(old, now *summary, result *Result) {
	c.add(old, -1)
	c.add(now, 1)
	if old.health != now.health {
		result.HealthChecks = append(result.HealthChecks, now.health)
	}
}

// add adds a summary to the totals, or subtracts it with sign -1.
func (c *counters) add(s *summary, sign int) {
	t := &c.totals
	count := func(n *int, b bool) {
		if b {
			*n += sign
		}
	}
	count(&t.Services, s.counted)
	count(&t.Failing, s.failing)
	count(&t.Limited, s.limited)
	count(&t.Holding, s.held > 0)
	t.Held += sign * s.held
	count(&t.Choices[s.choice], s.counted && s.choice != ChoiceNone)
	count(&t.HintsIgnored[s.hints], s.hints != service.HintsFollowed)
	count(&t.OwnSettings, s.ownSettings)
	count(&t.RefusedSettings, s.refusedSettings)
	for i := range s.family {
		of, all := &s.family[i], &t.Family[i]
		for phase, n := range of.endpoints {
			all.Endpoints[phase] += sign * n
		}
		count(&all.NoLocalInternal, of.noLocalInternal)
		count(&all.NoLocalExternal, of.noLocalExternal)
	}
	if s.policy.Policy != "" {
		p := c.policies[s.policy.Policy]
		if p == nil {
			p = &PolicyTotals{Policy: s.policy.Policy}
			c.policies[p.Policy] = p
		}
		for origin, n := range s.policy.Decisions {
			p.Decisions[origin] += sign * n
		}
		p.Shadow.add(&s.shadow, sign)
		c.listsDirty = true
	}
	for _, fb := range s.fallbacks {
		f := c.fallbacks[fb.Plugin]
		if f == nil {
			f = &PluginFallback{Plugin: fb.Plugin}
			c.fallbacks[fb.Plugin] = f
		}
		f.LastGood += sign * fb.LastGood
		f.Default += sign * fb.Default
		c.listsDirty = true
	}
}

// count adds the changes of the plan to the counters and completes the result.
func (p *Planner) count(result *Result) {
	c := &p.counters
	add := func(f *plan.Frontend, sign int) {
		if f != nil {
			c.totals.Family.At(f.Key.Family()).Frontends[f.Kind] += sign
		}
	}
	for _, change := range result.Delta.Changes {
		add(change.Old, -1)
		add(change.New, 1)
	}
	c.totals.Conflicts = p.builder.conflicts
	if c.listsDirty {
		c.list()
	}
	if n := c.totals.HintsIgnored[service.HintsNodeWithoutZone]; n == 0 {
		c.zoneWarned = false
	} else if !c.zoneWarned && result.Remaining == 0 {
		c.zoneWarned = true
		result.Warnings = append(result.Warnings, fmt.Sprintf("Node %s: no label topology.kubernetes.io/zone: the topology hints of %d Services are not followed", p.settings.Node, n))
	}
	result.Totals, result.NodeStatus = c.totals, c.nodeStatus
	result.Triggers, c.triggers = c.triggers, nil
}

// list rebuilds the lists of the totals, new ones: results share the old ones.
func (c *counters) list() {
	c.listsDirty = false
	c.totals.Policies, c.totals.Fallbacks = nil, nil
	for name, t := range c.policies {
		if *t == (PolicyTotals{Policy: name}) {
			delete(c.policies, name)
			continue
		}
		c.totals.Policies = append(c.totals.Policies, *t)
	}
	for name, f := range c.fallbacks {
		if f.LastGood == 0 && f.Default == 0 {
			delete(c.fallbacks, name)
			continue
		}
		c.totals.Fallbacks = append(c.totals.Fallbacks, *f)
	}
	slices.SortFunc(c.totals.Policies, func(x, y PolicyTotals) int { return cmp.Compare(x.Policy, y.Policy) })
	slices.SortFunc(c.totals.Fallbacks, func(x, y PluginFallback) int { return cmp.Compare(x.Plugin, y.Plugin) })
}
