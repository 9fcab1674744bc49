package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
)

// LeftOut returns why a limit left out the frontend of a connection that a Service wants, the first by name. The frontend of the
// result is that of the connection.
func (p *Planner) LeftOut(to netip.AddrPort, protocol model.Protocol) (why plan.Degradation, kind plan.Kind, found bool) {
	if p.counters.Limited() == 0 {
		return why, kind, false
	}
	for name, s := range p.services {
		svc := p.cluster.Services[name]
		if svc == nil || len(s.omitted) == 0 || s.omitted[0].Limit == "" || found && name.Compare(why.Owner.Service) > 0 {
			continue // limits of frontends come first
		}
		f, wanted := p.wants(p.served(svc), to, protocol)
		if !wanted {
			continue
		}
		if _, claimed := slices.BinarySearchFunc(p.claims.Wanted(name), f.Key, func(f *plan.Frontend, k plan.Key) int { return f.Key.Compare(k) }); claimed {
			continue // it is contested, not left out
		}
		why, kind, found = s.omitted[0], f.Kind, true
		why.Frontend, why.Owner = f.Key, f.Owner
	}
	return why, kind, found
}

// wants returns the key, kind and owner of the frontend of a Service that a connection is to.
func (w *world) wants(svc *model.Service, to netip.AddrPort, protocol model.Protocol) (f plan.Frontend, wanted bool) {
	addrs := claims.AddrsOf(svc)
	at := slices.IndexFunc(addrs, func(a claims.Addr) bool { return a.IP == to.Addr() && a.Served })
	onNode := slices.Contains(w.claims.Plan().Global.NodePortAddrs, to.Addr())
	for i := range svc.Ports {
		sp := &svc.Ports[i]
		f = plan.Frontend{Key: plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: protocol}, Owner: model.PortName{Service: svc.Name, Port: sp.Name, Protocol: protocol}}
		switch {
		case sp.Protocol != protocol:
		case at >= 0 && sp.Port == to.Port():
			f.Kind = addrs[at].Kind
			return f, true
		case onNode && sp.NodePort == to.Port():
			f.Kind, f.Key.Addr = plan.NodePort, netip.IPv4Unspecified()
			if to.Addr().Is6() {
				f.Key.Addr = netip.IPv6Unspecified()
			}
			return f, true
		}
	}
	return f, false
}
