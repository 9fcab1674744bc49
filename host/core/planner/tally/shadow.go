package tally

import (
	"errors"
	"math"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// perMillion is the unit in which divergences are added up: sums of integers do not depend on their order.
const perMillion = 1_000_000

// ServiceShadow is how the shadow of a Service's policy compares with what is in force.
type ServiceShadow struct {
	Service model.Name
	Policy  string // "": it has no shadow any more
	// Divergence is the mean share of new connections that would go to other endpoints, 0 to 1, over the pools that have weight.
	// It is valid if Compared.
	Divergence float64
	Compared   bool
	Failing    bool // of a pool
	Pending    bool // of a pool: a plugin has not answered yet
}

// ShadowSummary adds up the pools of a Service.
type ShadowSummary struct {
	Exists  bool // the policy has a shadow
	pools   int  // that are compared
	moved   int  // sum of their divergences, in millionths
	Pending bool
	Err     error // of the first pool that fails; nil: none does
}

func (s *ShadowSummary) add(d *policy.Shadow) {
	s.Exists = true
	if d.Compared {
		s.pools++
		s.moved += int(math.Round(d.Divergence * perMillion))
	}
	switch {
	case errors.Is(d.Err, policy.ErrPending):
		s.Pending = true
	case s.Err == nil:
		s.Err = d.Err
	}
}

// mean returns the mean divergence, in millionths.
func (s *ShadowSummary) mean() int {
	if s.pools == 0 {
		return 0
	}
	return (s.moved + s.pools/2) / s.pools
}

// ServiceShadow returns how the shadow of the Service compares.
func (s *Summary) ServiceShadow(name model.Name) ServiceShadow {
	out := ServiceShadow{Service: name}
	if w := s.Shadow(); w.Exists {
		out.Policy, out.Compared, out.Failing, out.Pending = s.Policy(), w.pools > 0, w.Err != nil, w.Pending
		out.Divergence = float64(w.mean()) / perMillion
	}
	return out
}

// ShadowTotals counts the Services with a policy by the state of its shadow. A Service may count in several.
type ShadowTotals struct {
	Compared         int // the shadow has a decision
	Failing, Pending int // a pool fails, or waits for a plugin
	moved            int // sum of the mean divergences of those that are compared, in millionths
}

// Divergence returns the mean share of new connections that would go to other endpoints, 0 to 1, over the Services that are
// compared.
func (t *ShadowTotals) Divergence() float64 {
	return float64(t.moved) / perMillion / float64(max(1, t.Compared))
}

// Exists reports whether a Service has the shadow, unless none of its Services has had endpoints.
func (t *ShadowTotals) Exists() bool { return *t != ShadowTotals{} }

func (t *ShadowTotals) add(s *ShadowSummary, sign int) {
	count(&t.Compared, s.pools > 0, sign)
	count(&t.Failing, s.Err != nil, sign)
	count(&t.Pending, s.Pending, sign)
	t.moved += sign * s.mean()
}
