package planner

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
)

// addShadow adds the comparison of a Service's shadow if it has changed.
func (res *Result) addShadow(name model.Name, before, now *tally.Summary) {
	if after := now.ServiceShadow(name); before.ServiceShadow(name) != after {
		res.Shadows = append(res.Shadows, after)
	}
}

// Shadows returns the Services whose policy has a shadow, those that diverge the most first.
func (p *Planner) Shadows() (out []tally.ServiceShadow) {
	for name, s := range p.services {
		if s.summary.Shadow.Exists {
			out = append(out, s.summary.ServiceShadow(name))
		}
	}
	slices.SortFunc(out, func(a, b tally.ServiceShadow) int {
		return cmp.Or(cmp.Compare(b.Divergence, a.Divergence), a.Service.Compare(b.Service))
	})
	return out
}
