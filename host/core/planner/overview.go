package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// ServiceOverview is a Service in a few numbers.
type ServiceOverview struct {
	Name      model.Name
	Policy    string     // "": none
	Frontends []plan.Key // in the plan, ClusterIPs first
	Endpoints int        // with weight, in any frontend
	Draining  int        // endpoints
	Failing   bool       // its policy
	Refused   bool       // an annotation that chooses its policy or sets settings
	Omitted   int        // frontends, endpoints and source ranges that its limits left out, and conflicts
}

// Overview returns the Services of a namespace, or of all if it is "", sorted by name. Its cost follows their number.
func (p *Planner) Overview(namespace string) (out []ServiceOverview) {
	for name, s := range p.services {
		svc := p.cluster.Services[name]
		if namespace != "" && name.Namespace != namespace || svc == nil {
			continue
		}
		o := ServiceOverview{Name: name, Draining: len(s.draining), Failing: s.summary.Failing, Omitted: len(s.omitted)}
		o.Refused = s.summary.Choice > tally.ChoiceInForce || s.summary.RefusedSettings
		ports, _ := p.evaluator.Chosen(p.settings.Policies, svc, nil)
		if i := slices.IndexFunc(ports, func(of *policy.Policy) bool { return of != nil }); i >= 0 {
			o.Policy = ports[i].Name
		}
		frontends := slices.SortedStableFunc(p.claims.Has(name), func(f, g *plan.Frontend) int { return int(f.Kind) - int(g.Kind) })
		o.Omitted += len(p.claims.Wanted(name)) - len(frontends)
		with := map[netip.AddrPort]bool{}
		for _, f := range frontends {
			o.Frontends = append(o.Frontends, f.Key)
			for _, pool := range []*plan.Pool{&f.Pool, f.Outside} {
				for i := 0; pool != nil && i < len(pool.Endpoints); i++ {
					if e := &pool.Endpoints[i]; e.Weight > 0 {
						with[e.Addr] = true
					}
				}
			}
		}
		o.Endpoints = len(with)
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b ServiceOverview) int { return a.Name.Compare(b.Name) })
	return out
}
