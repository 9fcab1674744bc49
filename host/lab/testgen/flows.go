package testgen

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// addDestinations adds the destinations of a Service.
func (c *Cluster) addDestinations(s *model.Service) {
	c.addrs = slices.Concat(c.addrs, s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs, c.options.NodeAddrs)
	served := func(a netip.Addr) bool {
		f := model.FamilyOf(a)
		return c.reaches(f) && (len(c.ofFamily(s.ClusterIPs, f)) > 0 || c.oneIn(4))
	}
	for _, p := range s.Ports {
		for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
			for _, a := range list {
				if !served(a) {
					continue
				}
				c.destinations = append(c.destinations, plan.Flow{To: netip.AddrPortFrom(a, p.Port), Protocol: p.Protocol})
			}
		}
		if p.NodePort == 0 {
			continue
		}
		for i, a := range c.options.NodeAddrs {
			if !served(a) || i > 0 && c.oneIn(2) {
				continue
			}
			c.destinations = append(c.destinations, plan.Flow{To: netip.AddrPortFrom(a, p.NodePort), Protocol: p.Protocol})
		}
	}
}

// Flow returns a random connection: mostly to a destination of a Service, sometimes to a wrong port, address or protocol. With
// default clients the source is sometimes a Service's address, as it is when a node connects to its own load balancer address.
func (c *Cluster) Flow() plan.Flow {
	f := pick(c.rng, c.destinations)
	switch c.rng.IntN(20) {
	case 0:
		f.To = netip.AddrPortFrom(f.To.Addr(), pick(c.rng, []uint16{53, 80, 81, 443, 30000, uint16(30000 + 27*c.options.Index)}))
	case 1:
		family := pick(c.rng, []model.Family{model.IPv4, model.IPv6})
		if !c.reaches(family) {
			family = model.FamilyOf(f.To.Addr())
		}
		f.To = netip.AddrPortFrom(c.serviceIP(family, byte(c.rng.IntN(3)), 1+c.rng.IntN(40)), f.To.Port())
	case 2:
		f.Protocol = pick(c.rng, c.options.Protocols)
	}
	f.From = pick(c.rng, c.ofFamily(c.options.Clients, model.FamilyOf(f.To.Addr())))
	f.Interface = c.options.Interfaces[f.From]
	if c.defaultClients && c.oneIn(20) {
		f.From = pick(c.rng, c.ofFamily(c.addrs, model.FamilyOf(f.To.Addr())))
	}
	return f
}

// reaches reports whether there are clients of a family.
func (c *Cluster) reaches(f model.Family) bool { return len(c.ofFamily(c.options.Clients, f)) > 0 }
