package simulation

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// unit is Services that routes connect, over time.
type unit struct {
	services []*serviceRun
	index    map[model.Name]int
	hosts    map[string]bool // of all
}

// serviceRun is a Service over time, which does not depend on policies.
type serviceRun struct {
	service  *model.Service
	versions []version
	hosts    map[string]bool // see hostsOf
	ports    []servicePort
	backend  bool // of routes
	local    bool // of one that needs the endpoints on the node
}

// servicePort is a Service port in one family.
type servicePort struct {
	name      model.PortName
	spec      *model.ServicePort
	index     int // of spec in the Service
	family    model.Family
	own       ownEndpoints
	endpoints []endpoint     // that connections to the port may go to, at any time, sorted by address
	parts     []part         // of endpoints: one, or by backend of the route
	routes    []routeVersion // the route of the port over time; nil: none
	// loadPool is the pool that the demand of nodes goes to, as abi.Pool…; -1: the clients use the other family.
	loadPool int
}

// ownEndpoints are the endpoints of a Service port, those of its Service.
type ownEndpoints struct {
	svc   *serviceRun
	list  []endpoint // of all versions, sorted by address
	ready [][]bool   // by version, parallel to list
}

// part is the endpoints of a Service port among those that connections to a port may go to.
type part struct {
	own *ownEndpoints // nil: the backend cannot be followed
	at  []int         // where they are, parallel to own.list
}

// endpoint is an endpoint at some time.
type endpoint struct {
	addr      netip.AddrPort
	zone      int // index of world.zones
	node, pod string
	capacity  float64
}

// unitOf returns Services over time.
func (s *Simulation) unitOf(names []model.Name) *unit {
	u := &unit{index: map[model.Name]int{}}
	for i, name := range names {
		svc := s.serviceOf(s.in.Cluster.Services[name])
		u.services, u.index[name] = append(u.services, svc), i
		if u.hosts == nil {
			u.hosts = svc.hosts
		} else {
			u.hosts = maps.Clone(u.hosts)
			maps.Copy(u.hosts, svc.hosts)
		}
	}
	for _, svc := range u.services {
		for i := range svc.ports {
			u.join(&svc.ports[i])
		}
	}
	return u
}

// serviceOf returns a Service over time, whose ports are not joined.
func (s *Simulation) serviceOf(svc *model.Service) *serviceRun {
	out := &serviceRun{
		service: svc, versions: s.world.versionsOf(svc.Name), backend: len(s.routes.parents[svc.Name]) > 0, local: s.routes.isLocal(s.in.Cluster, svc.Name),
	}
	out.hosts = hostsOf(out.versions)
	for i := range svc.Ports {
		route := s.world.versionsOfRoute(model.FirstRoute(s.routes.byParent[svc.Name], svc, &svc.Ports[i]))
		for _, f := range []model.Family{model.IPv4, model.IPv6} {
			if !slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return model.FamilyOf(a) == f }) {
				continue
			}
			p := servicePort{
				name: model.PortName{Service: svc.Name, Port: svc.Ports[i].Name, Protocol: svc.Ports[i].Protocol}, spec: &svc.Ports[i], index: i, family: f,
				routes: route, loadPool: -1,
			}
			switch {
			case f != model.FamilyOf(svc.ClusterIPs[0]):
			case svc.InternalLocal:
				p.loadPool = abi.PoolLocal
			default:
				p.loadPool = abi.PoolCluster
			}
			s.addEndpoints(out, &p)
			out.ports = append(out.ports, p)
		}
	}
	return out
}

// addEndpoints sets the endpoints of the Service.
func (s *Simulation) addEndpoints(svc *serviceRun, p *servicePort) {
	all := map[netip.AddrPort]endpoint{}
	var port eligibility.Port
	ready := make([]map[netip.AddrPort]bool, len(svc.versions))
	for i := range s.in.Runs {
		for j, v := range svc.versions {
			ready[j] = map[netip.AddrPort]bool{}
			eligibility.SelectEndpointsInto(&port, svc.service, p.spec, p.family, v.slices,
				eligibility.NodeInfo{MaxEndpoints: s.in.Runs[i].Settings.ServiceLimits.Endpoints, Endpoints: s.rules[i]})
			for k := range port.Endpoints {
				e := &port.Endpoints[k]
				ready[j][e.Addr] = e.Ready
				zone, _ := slices.BinarySearch(s.world.zones, endpointZone(s.world.cluster, e.Zone, e.Node))
				pod := s.world.pods[model.Name{Namespace: svc.service.Name.Namespace, Name: e.Pod}]
				all[e.Addr] = endpoint{e.Addr, zone, e.Node, e.Pod, s.in.Capacity.of(pod)}
			}
		}
	}
	p.own = ownEndpoints{svc: svc, list: sortEndpoints(all)}
	for j := range svc.versions {
		list := make([]bool, len(p.own.list))
		for k := range p.own.list {
			list[k] = ready[j][p.own.list[k].addr]
		}
		p.own.ready = append(p.own.ready, list)
	}
}

func sortEndpoints(all map[netip.AddrPort]endpoint) []endpoint {
	return slices.SortedFunc(maps.Values(all), func(a, b endpoint) int { return a.addr.Compare(b.addr) })
}

// search finds an address among sorted endpoints.
func search(list []endpoint, addr netip.AddrPort) (at int, found bool) {
	return slices.BinarySearchFunc(list, addr, func(e endpoint, a netip.AddrPort) int { return e.addr.Compare(a) })
}

// join sets the endpoints that connections to a port may go to: those of the Service, or those of the backends of its route.
func (u *unit) join(p *servicePort) {
	if p.routes == nil {
		p.endpoints, p.parts = p.own.list, []part{{own: &p.own, at: make([]int, len(p.own.list))}}
		for i := range p.own.list {
			p.parts[0].at[i] = i
		}
		return
	}
	route := p.routes[0].route // only weights change
	all := map[netip.AddrPort]endpoint{}
	for i := range route.Backends {
		var of part
		if b := u.backend(route, &route.Backends[i], p.family); b != nil {
			of.own = &b.own
			for _, e := range b.own.list {
				all[e.addr] = e
			}
		}
		p.parts = append(p.parts, of)
	}
	p.endpoints = sortEndpoints(all)
	for i := range p.parts {
		of := &p.parts[i]
		for j := 0; of.own != nil && j < len(of.own.list); j++ {
			at, _ := search(p.endpoints, of.own.list[j].addr)
			of.at = append(of.at, at)
		}
	}
}

// backend returns the port of a backend in a family; nil: it cannot be followed.
func (u *unit) backend(route *model.Route, b *model.RouteBackend, f model.Family) *servicePort {
	i, ok := u.index[model.Name{Namespace: route.Name.Name.Namespace, Name: b.Service}]
	if !ok {
		return nil
	}
	svc := u.services[i]
	port, _, _ := route.Resolve(b, svc.service)
	for j := range svc.ports {
		if p := &svc.ports[j]; p.spec == port && p.family == f {
			return p
		}
	}
	return nil
}

// asks reports whether the policy of a port decides about the endpoints of the Service: connections go to them, or those to
// another Service do.
func (p *servicePort) asks() bool { return p.routes == nil || p.own.svc.backend }

// has reports whether an endpoint is one of the Service at any time, or of the backends of its routes.
func (s *serviceRun) has(key model.EndpointKey) bool {
	for i := range s.ports {
		p := &s.ports[i]
		for _, list := range [][]endpoint{p.endpoints, p.own.list} {
			if _, found := search(list, key.Addr); found && p.name.Protocol == key.Protocol {
				return true
			}
		}
	}
	return false
}

// versionAt returns the index of the version at a time.
func (s *serviceRun) versionAt(t time.Duration) int {
	return at(s.versions, t, func(v version) time.Duration { return v.at })
}

// label returns the name of the port, or its number if it has none.
func (p *servicePort) label() string {
	if p.spec.Name != "" {
		return p.spec.Name
	}
	return strconv.Itoa(int(p.spec.Port))
}
