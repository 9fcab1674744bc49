package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// udpFlows knows which UDP flows go on although their endpoints do not serve, and which may be stale.
type udpFlows struct {
	*world
	keepsUDP map[model.Name]bool // Services with endpoints that do not serve and keep their UDP flows
	// nodePortAddrs are the addresses that served NodePorts when UDP flows through them were last reported.
	nodePortAddrs []netip.Addr
}

// addStaleUDP adds frontends whose UDP flows may be stale to the result of a Plan: those that are new, gone, or another Service
// port's. A change of the addresses that serve NodePorts concerns all of these.
func (u *udpFlows) addStaleUDP(result *Result) {
	for i := range result.Delta.Changes {
		c := &result.Delta.Changes[i]
		if c.Key.Protocol == model.UDP && (c.Old == nil || c.New == nil || c.Old.Owner != c.New.Owner) {
			result.StaleUDP = append(result.StaleUDP, c.Key)
		}
	}
	if result.Delta.Global == nil {
		return
	}
	before, now := u.nodePortAddrs, result.Delta.Global.NodePortAddrs
	if slices.Equal(before, now) {
		return
	}
	u.nodePortAddrs = now
	for _, a := range before {
		if !slices.Contains(now, a) {
			result.FormerNodePortAddrs = append(result.FormerNodePortAddrs, a)
		}
	}
	for k := range u.claims.Plan().Frontends {
		if k.Protocol == model.UDP && k.IsNodePort() {
			result.StaleUDP = append(result.StaleUDP, k)
		}
	}
	slices.SortFunc(result.StaleUDP, plan.Key.Compare)
}

// UDPFlows returns which UDP flows through frontends are stale as of the last Plan.
func (u *udpFlows) UDPFlows(frontends []plan.Key) plan.UDPFlows {
	out := plan.UDPFlows{Frontends: make(map[plan.Key]plan.UDPFrontend, len(frontends)), NodePorts: u.claims.Plan().Global.NodePortAddrs}
	for _, k := range frontends {
		out.Frontends[k] = u.udpFrontend(k)
	}
	return out
}

// AddKeptUDP adds the frontends of Services with endpoints that do not serve and keep their flows.
func (u *udpFlows) AddKeptUDP(list []plan.Key) []plan.Key {
	for name := range u.keepsUDP {
		for f := range u.claims.Has(name) {
			if f.Key.Protocol == model.UDP {
				list = append(list, f.Key)
			}
		}
	}
	return list
}

// KeepsUDP reports whether an endpoint that does not serve keeps its UDP flows.
func (u *udpFlows) KeepsUDP() bool { return len(u.keepsUDP) > 0 }

func (u *udpFlows) udpFrontend(k plan.Key) plan.UDPFrontend {
	f := u.claims.Plan().Frontends[k]
	if f == nil {
		return plan.UDPFrontend{Gone: true}
	}
	var e udpEndpoints
	if s := u.services[f.Owner.Service]; s != nil {
		e = s.udp[udpPort{f.Owner.Port, k.Family()}]
	}
	return plan.UDPFrontend{Serving: e.serving, Kept: e.kept()}
}

// setUDP replaces the endpoints of a Service that keep their UDP flows.
func (u *udpFlows) setUDP(name model.Name, s *serviceState, endpoints map[udpPort]udpEndpoints) {
	s.udp = endpoints
	delete(u.keepsUDP, name)
	for _, e := range endpoints {
		if len(e.kept()) > 0 {
			u.keepsUDP[name] = true
		}
	}
}
