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

// serviceRun is a Service over time, which does not depend on policies.
type serviceRun struct {
	service  *model.Service
	versions []version
	hosts    map[string]bool // see hostsOf
	ports    []servicePort
}

// servicePort is a Service port in one family.
type servicePort struct {
	name      model.PortName
	spec      *model.ServicePort
	index     int // of spec in the Service
	family    model.Family
	endpoints []endpoint // of all versions, sorted by address
	// loadPool is the pool that the demand of nodes goes to, as abi.Pool…; -1: the clients use the other family.
	loadPool int
	ready    [][]bool // by version, parallel to endpoints
}

// endpoint is an endpoint at some time.
type endpoint struct {
	addr      netip.AddrPort
	zone      int // index of world.zones
	node, pod string
	capacity  float64
}

// serviceOf returns a Service over time.
func (s *Simulation) serviceOf(svc *model.Service) *serviceRun {
	out := &serviceRun{service: svc, versions: s.world.versionsOf(svc.Name)}
	out.hosts = hostsOf(out.versions)
	for i := range svc.Ports {
		for _, f := range []model.Family{model.IPv4, model.IPv6} {
			if !slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return model.FamilyOf(a) == f }) {
				continue
			}
			p := servicePort{
				name: model.PortName{Service: svc.Name, Port: svc.Ports[i].Name, Protocol: svc.Ports[i].Protocol}, spec: &svc.Ports[i], index: i, family: f,
				loadPool: -1,
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

// addEndpoints sets the endpoints of a port.
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
	p.endpoints = slices.SortedFunc(maps.Values(all), func(a, b endpoint) int { return a.addr.Compare(b.addr) })
	for j := range svc.versions {
		list := make([]bool, len(p.endpoints))
		for k := range p.endpoints {
			list[k] = ready[j][p.endpoints[k].addr]
		}
		p.ready = append(p.ready, list)
	}
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
