package planner

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// perMillion is the unit in which divergences are added up: sums of integers do not depend on their order.
const perMillion = 1_000_000

// ServiceShadow is how the shadow of a Service's policy compares with what is in force.
type ServiceShadow struct {
	Service model.Name
	Policy  string // "": it has no shadow any more
	// Divergence is the mean share of new connections that would go to other endpoints, 0 to 1, over the pools that have weight. It is
	// valid if Compared.
	Divergence float64
	Compared   bool
	Failing    bool // of a pool
	Pending    bool // of a pool: a plugin has not answered yet
}

// shadowSummary adds up the pools of a Service.
type shadowSummary struct {
	exists  bool
	pools   int // that are compared
	moved   int // sum of their divergences, in millionths
	pending bool
	err     error // of the first pool that fails; nil: none does
}

func (s *shadowSummary) add(d *policy.Shadow) {
	s.exists = true
	if d.Compared {
		s.pools++
		s.moved += int(math.Round(d.Divergence * perMillion))
	}
	switch {
	case errors.Is(d.Err, policy.ErrPending):
		s.pending = true
	case s.err == nil:
		s.err = d.Err
	}
}

// mean returns the mean divergence, in millionths.
func (s *shadowSummary) mean() int {
	if s.pools == 0 {
		return 0
	}
	return (s.moved + s.pools/2) / s.pools
}

func (s *summary) serviceShadow(name model.Name) ServiceShadow {
	out := ServiceShadow{Service: name}
	if w := &s.shadow; w.exists {
		out.Policy, out.Compared, out.Failing, out.Pending = s.policy.Policy, w.pools > 0, w.err != nil, w.pending
		out.Divergence = float64(w.mean()) / perMillion
	}
	return out
}

// addShadow adds the comparison of a Service's shadow if it has changed.
func (res *Result) addShadow(name model.Name, before, now *summary) {
	if after := now.serviceShadow(name); before.serviceShadow(name) != after {
		res.Shadows = append(res.Shadows, after)
	}
}

// Shadows returns the Services whose policy has a shadow, those that diverge the most first.
func (p *Planner) Shadows() (out []ServiceShadow) {
	for name, s := range p.services {
		if s.summary.shadow.exists {
			out = append(out, s.summary.serviceShadow(name))
		}
	}
	slices.SortFunc(out, func(a, b ServiceShadow) int {
		return cmp.Or(cmp.Compare(b.Divergence, a.Divergence), a.Service.Compare(b.Service))
	})
	return out
}

// ShadowTotals counts the Services with a policy by the state of its shadow. A Service may count in several.
type ShadowTotals struct {
	Compared         int // the shadow has a decision
	Failing, Pending int // a pool fails, or waits for a plugin
	moved            int // sum of the mean divergences of those that are compared, in millionths
}

// Divergence returns the mean share of new connections that would go to other endpoints, 0 to 1, over the Services that are compared.
func (t *ShadowTotals) Divergence() float64 {
	return float64(t.moved) / perMillion / float64(max(1, t.Compared))
}

// Exists reports whether a Service has the shadow, unless none of its Services has had endpoints.
func (t *ShadowTotals) Exists() bool { return *t != ShadowTotals{} }

func (t *ShadowTotals) add(s *shadowSummary, sign int) {
	t.Compared += sign * oneIf(s.pools > 0)
	t.Failing += sign * oneIf(s.err != nil)
	t.Pending += sign * oneIf(s.pending)
	t.moved += sign * s.mean()
}
