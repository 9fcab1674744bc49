package clustergen

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// remember notes where a Service listens.
func (c *Cluster) remember(s *model.Service) {
	c.addrs = slices.Concat(c.addrs, s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs, c.o.NodeAddrs)
	served := func(a netip.Addr) bool {
		f := model.FamilyOf(a)
		return c.reaches(f) && (len(c.ofFamily(s.ClusterIPs, f)) > 0 || c.one(4))
	}
	for _, p := range s.Ports {
		for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
			for _, a := range list {
				if !served(a) {
					continue
				}
				c.to = append(c.to, plan.Flow{To: netip.AddrPortFrom(a, p.Port), Protocol: p.Protocol})
			}
		}
		if p.NodePort == 0 {
			continue
		}
		for i, a := range c.o.NodeAddrs {
			if !served(a) || i > 0 && c.one(2) {
				continue
			}
			c.to = append(c.to, plan.Flow{To: netip.AddrPortFrom(a, p.NodePort), Protocol: p.Protocol})
		}
	}
}

// Flow makes a connection: mostly to where a Service listens, often to a wrong port, address or protocol. Addresses
// that no Service has are from its own blocks too. Made-up clients are now and then at a Service's address, as a node
// is that talks to a load balancer address of its own.
func (c *Cluster) Flow() plan.Flow {
	f := pick(c, c.to)
	switch c.rng.IntN(20) {
	case 0:
		f.To = netip.AddrPortFrom(f.To.Addr(), pick(c, []uint16{53, 80, 81, 443, 30000, uint16(30000 + 27*c.o.Index)}))
	case 1:
		family := pick(c, []model.Family{model.IPv4, model.IPv6})
		if !c.reaches(family) {
			family = model.FamilyOf(f.To.Addr())
		}
		f.To = netip.AddrPortFrom(c.vip(family, byte(c.rng.IntN(3)), 1+c.rng.IntN(40)), f.To.Port())
	case 2:
		f.Protocol = pick(c, c.o.Protocols)
	}
	f.From = pick(c, c.ofFamily(c.o.Clients, model.FamilyOf(f.To.Addr())))
	f.Interface = c.o.Interfaces[f.From]
	if c.madeUp && c.one(20) {
		f.From = pick(c, c.ofFamily(c.addrs, model.FamilyOf(f.To.Addr())))
	}
	return f
}

// reaches tells whether there are clients of a family.
func (c *Cluster) reaches(f model.Family) bool { return len(c.ofFamily(c.o.Clients, f)) > 0 }
