package tally

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Counters maintains the Totals: they are the sums of what Replace has put in for each Service, and of the frontends that Change
// has.
type Counters struct {
	totals     Totals
	policies   map[string]*PolicyTotals
	fallbacks  map[string]*PluginFallback
	listsDirty bool // totals.Policies and totals.Fallbacks are out of date
}

// NewCounters returns the counters of an empty plan.
func NewCounters() Counters {
	return Counters{policies: map[string]*PolicyTotals{}, fallbacks: map[string]*PluginFallback{}}
}

// Replace replaces a Service's summary in the totals.
func (c *Counters) Replace(old, now *Summary) {
	c.add(old, -1)
	c.add(now, 1)
}

// Change counts the frontends that a change of the plan adds and removes.
func (c *Counters) Change(changes []plan.Change) {
	add := func(f *plan.Frontend, sign int) {
		if f != nil {
			c.totals.Family.At(f.Key.Family()).Frontends[f.Kind] += sign
		}
	}
	for _, change := range changes {
		add(change.Old, -1)
		add(change.New, 1)
	}
}

// Limited returns Totals.Limited.
func (c *Counters) Limited() int { return c.totals.Limited }

// Totals returns the totals, without what others count: conflicts and guards. Its lists are not modified any more.
func (c *Counters) Totals() Totals {
	if c.listsDirty {
		c.list()
	}
	return c.totals
}

// add adds a summary to the totals, or subtracts it with sign -1.
func (c *Counters) add(s *Summary, sign int) {
	t := &c.totals
	count := func(n *int, b bool) { count(n, b, sign) }
	count(&t.Services, s.counted)
	count(&t.Failing, s.Failing)
	count(&t.Limited, s.Limited)
	count(&t.Holding, s.Held > 0)
	t.Held += sign * s.Held
	count(&t.Choices[s.Choice], s.counted && s.Choice != ChoiceNone)
	count(&t.HintsIgnored[s.hints], s.hints != eligibility.HintsFollowed)
	count(&t.OwnSettings, s.OwnSettings)
	count(&t.RefusedSettings, s.RefusedSettings)
	for i := range s.family {
		of, all := &s.family[i], &t.Family[i]
		for phase, n := range of.endpoints {
			all.Endpoints[phase] += sign * int(n)
		}
		count(&all.NoLocalInternal, of.noLocalInternal)
		count(&all.NoLocalExternal, of.noLocalExternal)
	}
	of := s.policy
	if of == nil {
		return
	}
	p := c.policies[of.name]
	if p == nil {
		p = &PolicyTotals{Policy: of.name}
		c.policies[p.Policy] = p
	}
	for origin, n := range of.decisions {
		p.Decisions[origin] += sign * n
	}
	p.Shadow.add(&of.shadow, sign)
	c.listsDirty = true
	for _, fb := range of.fallbacks {
		f := c.fallbacks[fb.Plugin]
		if f == nil {
			f = &PluginFallback{Plugin: fb.Plugin}
			c.fallbacks[fb.Plugin] = f
		}
		f.LastGood += sign * fb.LastGood
		f.Default += sign * fb.Default
	}
}

// count adds sign to n if b is true.
func count(n *int, b bool, sign int) {
	if b {
		*n += sign
	}
}

// list rebuilds the lists of the totals, new ones: results share the old ones.
func (c *Counters) list() {
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
