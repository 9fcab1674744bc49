package planner

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// decisionCache stores the last decisions about a Service with a policy, for Explain. When all Services have a policy there is an
// entry for every endpoint of the cluster, so entries are packed, without the properties that EndpointSlices contain.
type decisionCache struct {
	decisions []policy.PortDecision // without Port.Endpoints
	endpoints []packedEndpoints
}

// packedEndpoints are endpoints as of the decision.
type packedEndpoints struct {
	addrs model.AddrList
	flags []uint8 // see endpointFlags
}

// endpointFlags returns the fields stored in packedEndpoints.flags, by bit.
func endpointFlags(e *eligibility.Endpoint) [8]*bool {
	return [...]*bool{&e.Ready, &e.Serving, &e.Terminating, &e.Local, &e.HintedZone, &e.HintedNode, &e.InCluster, &e.InLocal}
}

// add adds the decision about a port.
func (k *decisionCache) add(decided *policy.PortDecision) {
	d, port := *decided, *decided.Port
	eps := port.Endpoints
	list := packedEndpoints{
		addrs: model.PackAddrs(len(eps), func(j int) netip.AddrPort { return eps[j].Addr }),
		flags: make([]uint8, len(eps)),
	}
	for j := range eps {
		for bit, set := range endpointFlags(&eps[j]) {
			if *set {
				list.flags[j] |= 1 << bit
			}
		}
	}
	port.Endpoints = nil
	d.Port = &port
	k.decisions, k.endpoints = append(k.decisions, d), append(k.endpoints, list)
}

// unpack returns the decisions, completed with the current properties of the endpoints from the EndpointSlices.
func (k *decisionCache) unpack(slicesOfService []*model.EndpointSlice) []policy.PortDecision {
	byAddr := map[netip.Addr]*model.SliceEndpoint{}
	for _, s := range slicesOfService {
		for i := range s.Endpoints {
			byAddr[s.Endpoints[i].Addr] = &s.Endpoints[i]
		}
	}
	out := make([]policy.PortDecision, len(k.decisions))
	for i := range out {
		out[i] = k.decisions[i]
		port := *k.decisions[i].Port
		port.Endpoints = make([]eligibility.Endpoint, k.endpoints[i].addrs.Len())
		for j := range port.Endpoints {
			e := &port.Endpoints[j]
			e.Addr = k.endpoints[i].addrs.At(j)
			if s := byAddr[e.Addr.Addr()]; s != nil {
				e.Node, e.Zone, e.Pod = s.Node, s.Zone, s.Pod
				e.HasZoneHints, e.HasNodeHints = len(s.ForZones()) > 0, len(s.ForNodes()) > 0
			}
			for bit, set := range endpointFlags(e) {
				*set = k.endpoints[i].flags[j]&(1<<bit) != 0
			}
		}
		out[i].Port = &port
	}
	return out
}
