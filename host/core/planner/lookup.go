package planner

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Service returns a planned Service; nil: there is none. It is read-only.
func (p *Planner) Service(name model.Name) *model.Service {
	if p.services[name] == nil {
		return nil
	}
	return p.cluster.Services[name]
}

// PodAddrs returns the addresses that EndpointSlices have for a Pod, sorted; nil: none names it. It goes through all EndpointSlices.
func (p *Planner) PodAddrs(pod model.Name) (addrs []netip.Addr) {
	for service, all := range p.cluster.Slices {
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
