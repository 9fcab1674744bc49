package planner

import (
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// routes finds the routes of a Service that is a parent, and the parents of a Service that is a backend. All are of one
// namespace, so whoever multiplies work by routes has the turns of that namespace for it.
type routes struct {
	byParent map[model.Name][]*model.Route     // the oldest first
	parents  map[model.Name]map[model.Name]int // by backend, with the number of routes
	backends map[model.Name]map[model.Name]int // by parent, likewise
}

func newRoutes(all map[model.ObjectName]*model.Route) routes {
	x := routes{map[model.Name][]*model.Route{}, map[model.Name]map[model.Name]int{}, map[model.Name]map[model.Name]int{}}
	for _, r := range all {
		x.replace(nil, r)
	}
	return x
}

// replace replaces a route; nil is none.
func (x *routes) replace(old, r *model.Route) {
	oldParents, oldBackends := old.Services()
	parents, backends := r.Services()
	for _, p := range oldParents {
		if x.byParent[p] = slices.DeleteFunc(x.byParent[p], func(o *model.Route) bool { return o == old }); len(x.byParent[p]) == 0 {
			delete(x.byParent, p)
		}
	}
	for _, p := range parents {
		at, _ := slices.BinarySearchFunc(x.byParent[p], r, (*model.Route).Compare)
		x.byParent[p] = slices.Insert(x.byParent[p], at, r)
	}
	count(x.parents, oldBackends, oldParents, -1)
	count(x.backends, oldParents, oldBackends, -1)
	count(x.parents, backends, parents, 1)
	count(x.backends, parents, backends, 1)
}

// count adds a number to that of each pair.
func count(m map[model.Name]map[model.Name]int, from, to []model.Name, n int) {
	for _, a := range from {
		for _, b := range to {
			if m[a] == nil {
				m[a] = map[model.Name]int{}
			}
			if m[a][b] += n; m[a][b] == 0 {
				delete(m[a], b)
			}
		}
		if len(m[a]) == 0 {
			delete(m, a)
		}
	}
}

// attached returns the route of each port of a Service, nil for none; nil: no port has one.
func (x *routes) attached(svc *model.Service) (out []*model.Route) {
	list := x.byParent[svc.Name]
	for i := 0; i < len(svc.Ports) && len(list) > 0; i++ {
		r := model.FirstRoute(list, svc, &svc.Ports[i])
		if r == nil {
			continue
		}
		if out == nil {
			out = make([]*model.Route, len(svc.Ports))
		}
		out[i] = r
	}
	return out
}

// parentsOf returns the Services that routes split over a Service, sorted.
func (x *routes) parentsOf(backend model.Name) []model.Name {
	return slices.SortedFunc(maps.Keys(x.parents[backend]), model.Name.Compare)
}

// usesLocal reports whether a Service sends some of its connections to endpoints on the node only.
func usesLocal(svc *model.Service) bool {
	return svc != nil && (svc.InternalLocal || svc.ExternalLocal)
}

// localWanted reports whether a Service that is split over a backend needs the local pool of the backend.
func (w *world) localWanted(backend model.Name) bool {
	for parent := range w.routes.parents[backend] {
		if usesLocal(w.cluster.Services[parent]) {
			return true
		}
	}
	return false
}

// applyRoute takes in a change of a route, or of a Service that is a parent, before it is applied to the cluster.
func (w *world) applyRoute(c *model.Change) {
	switch c.Kind {
	case model.RouteKind:
		old := w.cluster.Routes[model.ObjectName{Kind: c.Group, Name: c.Name}]
		w.routes.replace(old, c.Route)
		for _, r := range []*model.Route{old, c.Route} {
			parents, backends := r.Services()
			for _, name := range parents {
				w.markKnown(name)
			}
			for _, name := range backends {
				w.markBackend(name)
			}
		}
	case model.ServiceKind:
		if usesLocal(w.cluster.Services[c.Name]) != usesLocal(c.Service) {
			for name := range w.routes.backends[c.Name] {
				w.markKnown(name)
			}
		}
	}
}

// markKnown schedules a Service that is planned.
func (l *roster) markKnown(name model.Name) {
	if s := l.services[name]; s != nil {
		l.schedule(s, queue.Changed)
	}
}

// markBackend schedules a Service that has become a backend of a route, or is none any more.
func (w *world) markBackend(name model.Name) {
	if s := w.services[name]; s != nil && (s.record == nil || len(w.routes.parents[name]) == 0 || s.record.local != w.localWanted(name)) {
		w.schedule(s, queue.Changed)
	}
}

// Record is what has been decided about a Service that is a backend of routes. It does not change once it is complete.
type Record struct {
	svc   *model.Service
	local bool // the local pools are wanted
	// outcomes reports that those of connections to its endpoints are counted, whichever Service they are to.
	outcomes bool
	ports    []recorded
}

// recorded is what has been decided about a port in one family. It does not change.
type recorded struct {
	decision policy.PortDecision
	policy   *policy.Policy // nil: none
}

// NewRecord returns the record of a Service without ports. local reports whether they have local pools.
func NewRecord(svc *model.Service, local bool) *Record { return &Record{svc: svc, local: local} }

// newRecord returns the record of a Service that a round makes; nil: it is no backend.
func (w *world) newRecord(svc *model.Service) *Record {
	if len(w.routes.parents[svc.Name]) == 0 {
		return nil
	}
	return NewRecord(svc, w.localWanted(svc.Name))
}

// Add records what a policy has decided about a port; nil: none has. It keeps the weights of the decision.
func (k *Record) Add(d *policy.PortDecision, by *policy.Policy) {
	port := *d.Port
	port.Endpoints = slices.Clone(port.Endpoints)
	kept := func(d *policy.Decision) policy.Decision {
		return policy.Decision{Weights: d.Weights, ResetAt: d.ResetAt, KeepDraining: d.KeepDraining, Balance: d.Balance, Sheds: d.Sheds}
	}
	k.ports = append(k.ports, recorded{policy.PortDecision{Port: &port, Cluster: kept(&d.Cluster), Local: kept(&d.Local)}, by})
}

// port returns what has been decided about a port; nil: limits of the Service have left it out.
func (k *Record) port(p *model.ServicePort, f model.Family) *recorded {
	for i := range k.ports {
		if of := k.ports[i].decision.Port; of.Family == f && of.Name.Port == p.Name && of.Name.Protocol == p.Protocol {
			return &k.ports[i]
		}
	}
	return nil
}

// Equal reports whether another record, nil for none, makes no difference to the parents.
func (k *Record) Equal(l *Record) bool {
	return l != nil && k.local == l.local && k.outcomes == l.outcomes && slices.Equal(k.svc.ClusterIPs, l.svc.ClusterIPs) && slices.Equal(k.svc.Ports, l.svc.Ports) &&
		slices.EqualFunc(k.ports, l.ports, func(a, b recorded) bool {
			return a.policy == b.policy && equalPorts(a.decision.Port, b.decision.Port) &&
				equalDecisions(&a.decision.Cluster, &b.decision.Cluster) && equalDecisions(&a.decision.Local, &b.decision.Local)
		})
}

func equalPorts(a, b *eligibility.Port) bool {
	return a.Name == b.Name && a.Family == b.Family && a.Topology == b.Topology && a.UsesCluster == b.UsesCluster && a.UsesLocal == b.UsesLocal &&
		slices.Equal(a.Endpoints, b.Endpoints)
}

func equalDecisions(a, b *policy.Decision) bool {
	return a.Balance == b.Balance && slices.Equal(a.Weights, b.Weights) && slices.Equal(a.ResetAt, b.ResetAt) &&
		slices.Equal(a.KeepDraining, b.KeepDraining) && slices.Equal(a.Sheds, b.Sheds)
}

// setRecord replaces the record of a Service, and schedules the Services that routes split over it, if that makes a difference
// to them, for a reason of a class.
func (w *world) setRecord(name model.Name, s *serviceState, k *Record, of queue.Class) {
	if s.record == k || k != nil && k.Equal(s.record) {
		return
	}
	s.record = k
	for _, parent := range w.routes.parentsOf(name) {
		if at := w.services[parent]; at != nil && parent != name {
			w.schedule(at, of)
		}
	}
}
