package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
)

// kept is what was decided last for a Service with a policy, for people to ask about. There is an entry for every
// endpoint of the cluster where all Services have one, so what the cluster says of an endpoint is not kept with it.
type kept struct {
	decided   []PortDecision // without endpoints and reasons
	endpoints []keptEndpoints
	reasons   [][2][]policy.Reasons // of the plugins that decided about the cluster pool and the local one
}

// keptEndpoints are endpoints as they were when they were decided about.
type keptEndpoints struct {
	addrs model.AddrList
	is    []uint8 // bits, see flags
}

// flags are what is kept of an endpoint, by bit.
func flags(e *service.Endpoint) [8]*bool {
	return [...]*bool{&e.Ready, &e.Serving, &e.Terminating, &e.Local, &e.HintedZone, &e.HintedNode, &e.InCluster, &e.InLocal}
}

func keep(decided []PortDecision) *kept {
	k := &kept{decided: make([]PortDecision, len(decided)), endpoints: make([]keptEndpoints, len(decided)), reasons: make([][2][]policy.Reasons, len(decided))}
	for i := range decided {
		k.decided[i] = decided[i]
		port := *decided[i].Port
		eps := port.Endpoints
		list := keptEndpoints{
			addrs: model.PackAddrs(len(eps), func(j int) netip.AddrPort { return eps[j].Addr }),
			is:    make([]uint8, len(eps)),
		}
		for j := range eps {
			for bit, is := range flags(&eps[j]) {
				if *is {
					list.is[j] |= 1 << bit
				}
			}
		}
		port.Endpoints = nil
		k.decided[i].Port, k.endpoints[i] = &port, list
		for pool, d := range []*policy.Decision{&k.decided[i].Cluster, &k.decided[i].Local} {
			d.Steps = slices.Clone(d.Steps)
			for j := range d.Steps {
				said := d.Steps[j].Reasons
				k.reasons[i][pool] = append(k.reasons[i][pool], policy.PackReasons(len(said), func(n int) string { return said[n] }))
				d.Steps[j].Reasons = nil
			}
		}
	}
	return k
}

// tell gives back what was kept, with what the slices say of the endpoints.
func (k *kept) tell(from []*model.EndpointSlice) []PortDecision {
	said := map[netip.Addr]*model.SliceEndpoint{}
	for _, s := range from {
		for i := range s.Endpoints {
			said[s.Endpoints[i].Addr] = &s.Endpoints[i]
		}
	}
	out := make([]PortDecision, len(k.decided))
	for i := range out {
		out[i] = k.decided[i]
		port := *k.decided[i].Port
		port.Endpoints = make([]service.Endpoint, k.endpoints[i].addrs.Len())
		for j := range port.Endpoints {
			e := &port.Endpoints[j]
			e.Addr = k.endpoints[i].addrs.At(j)
			if s := said[e.Addr.Addr()]; s != nil {
				e.Node, e.Zone, e.Pod = s.Node, s.Zone, s.Pod
			}
			for bit, is := range flags(e) {
				*is = k.endpoints[i].is[j]&(1<<bit) != 0
			}
		}
		out[i].Port = &port
		for pool, d := range []*policy.Decision{&out[i].Cluster, &out[i].Local} {
			d.Steps = slices.Clone(d.Steps)
			for j := range d.Steps {
				s := &d.Steps[j]
				s.Reasons = make([]string, len(s.Weights))
				for n := range s.Reasons {
					s.Reasons[n] = k.reasons[i][pool][j].At(n)
				}
			}
		}
	}
	return out
}
