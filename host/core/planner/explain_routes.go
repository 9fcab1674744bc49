package planner

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// LosingRoute is a route of a port that an older one has.
type LosingRoute struct {
	Port       model.PortName
	Route, For *model.Route
}

// withoutRoute returns the decisions about ports without a route.
func withoutRoute(list []policy.PortDecision, svc *model.Service, routes []*model.Route) []policy.PortDecision {
	return slices.DeleteFunc(list, func(d policy.PortDecision) bool {
		for i, r := range routes {
			if p := &svc.Ports[i]; r != nil && p.Name == d.Port.Name.Port && p.Protocol == d.Port.Name.Protocol {
				return true
			}
		}
		return false
	})
}

// Refusals says which parts of the connections to a pool, as abi.Pool…, are refused, and why.
func (s *Split) Refusals(pool int) (out []string) {
	for i := range s.Parts {
		if part, b := &s.Parts[i], &s.Route.Backends[i]; part.Pools[pool].Refused {
			out = append(out, fmt.Sprintf("%s %s refuses %.1f %%, those for %s:%d: %s", s.Route.Name.Kind, s.Route.Name.Name, 100*part.Pools[pool].Held,
				b.Service, b.Port, cmp.Or(part.Why, "no endpoint can serve")))
		}
	}
	return out
}

// SplitOf returns how a route splits the connections to a frontend; nil: none does.
func (e *Explanation) SplitOf(f *plan.Frontend) *Split {
	for _, s := range e.Splits {
		if s != nil && s.Decision.Port.Name == f.Owner && s.Decision.Port.Family == f.Key.Family() {
			return s
		}
	}
	return nil
}

// explainRoutes adds the ports that have a route.
func (rs *rounds) explainRoutes(e *Explanation, routes []*model.Route) {
	e.Splits = make([]*Split, len(e.Decisions))
	for i := range routes {
		if routes[i] == nil {
			continue
		}
		port := &e.Service.Ports[i]
		for _, f := range model.Families {
			if !e.Service.HasFamily(f) {
				continue
			}
			if s := rs.split(e.Service, port, f, routes[i], nil); s != nil {
				e.Decisions, e.Splits = append(e.Decisions, s.Decision), append(e.Splits, s)
				if e.Seen != nil {
					e.Seen = append(e.Seen, PortSeen{})
				}
			}
		}
		for _, r := range rs.routes.byParent[e.Service.Name] {
			if r != routes[i] && r.Attaches(e.Service, port) && len(e.Losing) < maxExplained {
				e.Losing = append(e.Losing, LosingRoute{model.PortName{Service: e.Service.Name, Port: port.Name, Protocol: port.Protocol}, r, routes[i]})
			}
		}
	}
}
