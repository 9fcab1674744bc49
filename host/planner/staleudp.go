package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// udpPort is a UDP Service port in one family.
type udpPort struct {
	port   string
	family model.Family
}

// staleUDPFlows adds the frontends of a Service whose UDP flows may be stale: an endpoint stopped serving, the first one started
// serving, or the Service port is new to this process. An endpoint that terminates and still serves keeps its flows.
func (s *serviceState) staleUDPFlows(decided []PortDecision, frontends []*plan.Frontend, result *Result) {
	var serving map[udpPort][]netip.AddrPort
	for i := range decided {
		p := decided[i].Port
		if p.Name.Protocol != model.UDP {
			continue
		}
		var now []netip.AddrPort
		for j := range p.Endpoints {
			if p.Endpoints[j].Serving || p.Endpoints[j].Ready {
				now = append(now, p.Endpoints[j].Addr)
			}
		}
		if serving == nil {
			serving = map[udpPort][]netip.AddrPort{}
		}
		at := udpPort{p.Name.Port, p.Family}
		serving[at] = now
		old, known := s.serving[at]
		if known && (len(old) > 0 || len(now) == 0) && !anyMissing(old, now) {
			continue
		}
		for _, f := range frontends {
			if f.Owner == p.Name && f.Key.Family() == p.Family {
				result.StaleUDPFlows = append(result.StaleUDPFlows, plan.StaleUDPFlows{Frontend: f.Key, Serving: now})
			}
		}
	}
	s.serving = serving
}

// anyMissing reports whether now lacks an address of old; both are sorted.
func anyMissing(old, now []netip.AddrPort) bool {
	return slices.ContainsFunc(old, func(a netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(now, a, netip.AddrPort.Compare)
		return !found
	})
}
