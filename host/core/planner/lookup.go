package planner

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// Service returns a planned Service; nil: there is none. It is read-only.
func (w *world) Service(name model.Name) *model.Service {
	if w.services[name] == nil {
		return nil
	}
	return w.cluster.Services[name]
}

// PodAddrs returns the addresses that EndpointSlices have for a Pod, sorted; nil: none names it. It goes through all
// EndpointSlices.
func (w *world) PodAddrs(pod model.Name) (addrs []netip.Addr) {
	for service, all := range w.cluster.Slices {
		if service.Namespace != pod.Namespace {
			continue
		}
		for _, s := range all {
			for i := range s.Endpoints {
				if s.Endpoints[i].Pod == pod.Name {
					addrs = append(addrs, s.Endpoints[i].Addr)
				}
			}
		}
	}
	return sortedAddrs(addrs)
}

// ServiceNames returns the names of all planned Services, sorted.
func (l *roster) ServiceNames() []model.Name {
	return slices.SortedFunc(maps.Keys(l.services), model.Name.Compare)
}

// Omitted returns what is left out of Services because of limits and addresses, sorted by Service.
func (l *roster) Omitted() (out []plan.Degradation) {
	for _, name := range l.ServiceNames() {
		out = append(out, l.services[name].omitted...)
	}
	return out
}

// Draining returns the Services with endpoints that drain, sorted, and how many more than limit there are.
func (l *roster) Draining(limit int) (names []model.Name, more int) {
	return l.servicesWith(limit, func(s *serviceState) bool { return s.draining != nil })
}

// Failing returns the Services whose policy fails, sorted, and how many more than limit there are.
func (l *roster) Failing(limit int) (names []model.Name, more int) {
	return l.servicesWith(limit, func(s *serviceState) bool { return s.summary.Failing })
}

func (l *roster) servicesWith(limit int, ok func(*serviceState) bool) (names []model.Name, more int) {
	for name, s := range l.services {
		if ok(s) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, model.Name.Compare)
	n := min(limit, len(names))
	return names[:n], len(names) - n
}

// Shadows returns the Services whose policy has a shadow, those that diverge the most first.
func (l *roster) Shadows() (out []tally.ServiceShadow) {
	for name, s := range l.services {
		if s.summary.Shadow().Exists {
			out = append(out, s.summary.ServiceShadow(name))
		}
	}
	slices.SortFunc(out, func(a, b tally.ServiceShadow) int {
		return cmp.Or(cmp.Compare(b.Divergence, a.Divergence), a.Service.Compare(b.Service))
	})
	return out
}

// NotFound returns the error about a Service that the planner does not have, with those that are probably meant: of the same name
// in other namespaces, or else of a similar name.
func (w *world) NotFound(name model.Name) error {
	var others, siblings []string
	for _, n := range w.ServiceNames() {
		if n.Name == name.Name {
			others = append(others, n.String())
		} else if n.Namespace == name.Namespace {
			siblings = append(siblings, n.Name)
		}
	}
	hint := spelling.DidYouMean(name.Name, siblings)
	if len(others) > 0 {
		hint = "; there is " + strings.Join(others, ", ")
	}
	return fmt.Errorf("Service %s: not found (or headless, ExternalName, or for another proxy)%s", name, hint)
}

// Overview returns the Services of a namespace, or of all if it is "", sorted by name. Its cost follows their number.
func (w *world) Overview(namespace string) (out []ServiceOverview) {
	for name, s := range w.services {
		svc := w.cluster.Services[name]
		if namespace != "" && name.Namespace != namespace || svc == nil {
			continue
		}
		o := ServiceOverview{Name: name, Draining: len(s.draining), Failing: s.summary.Failing, Omitted: len(s.omitted)}
		o.Refused = s.summary.Choice > tally.ChoiceInForce || s.summary.RefusedSettings
		ports, _ := w.evaluator.Chosen(w.settings.Policies, svc, nil)
		if i := slices.IndexFunc(ports, func(of *policy.Policy) bool { return of != nil }); i >= 0 {
			o.Policy = ports[i].Name
		}
		frontends := slices.SortedStableFunc(w.claims.Has(name), func(f, g *plan.Frontend) int { return int(f.Kind) - int(g.Kind) })
		o.Omitted += len(w.claims.Wanted(name)) - len(frontends)
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
