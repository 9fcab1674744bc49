package policy

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// requests builds requests.
type requests struct {
	*loader
	*known
	portIndex []int // from the endpoints of the last request that was built to Port.Endpoints
}

// build builds the request for the first plugin of the chain, as by the default rules, without topology hints if the policy
// ignores these, and portIndex.
func (b *requests) build(c *Call, ch *chain, times *conditionTimes, in *Input, now time.Time) outcomesOf {
	p := in.Port
	var needs uint32
	needs, c.keys = b.asks(ch.plugins(), c.keys[:0])
	b.portIndex = b.portIndex[:0]
	eps := slices.Grow(c.Request.Endpoints[:0], len(p.Endpoints))
	for i := range p.Endpoints {
		ep := &p.Endpoints[i]
		if in.Pool == abi.PoolLocal && !ep.Local {
			continue
		}
		since, bits := times.times[i], conditions(in, i)
		if ch.policy.IgnoreHints && in.Pool == abi.PoolCluster && p.UsesCluster && (ep.Ready || ep.HeldCluster) {
			bits |= abi.Chosen
		}
		eps = append(eps, abi.Endpoint{
			Addr: ep.Addr, Conditions: bits, Node: ep.Node, Zone: ep.Zone,
			PriorWeight: abi.NoWeight,
			ReadySince:  milliseconds(since.ready), TerminatingSince: milliseconds(since.terminating), Connections: abi.ConnectionsUnknown,
		})
		if needs&abi.NeedPodNames != 0 {
			eps[len(eps)-1].Pod = ep.Pod
		}
		b.portIndex = append(b.portIndex, i)
	}
	if ch.lastGood != nil {
		j := 0
		ch.lastGood.forEach(in, func(i, r int) {
			if j < len(b.portIndex) && b.portIndex[j] == i {
				if r >= 0 {
					eps[j].PriorWeight = int32(ch.lastGood.rows[r].weight)
				}
				j++
			}
		})
	}
	c.Key = PoolKey{p.Name, p.Family, in.Pool}
	c.zones = appendZones(c.zones[:0], in, needs)
	c.Request = abi.Request{
		Now:       wholeSecond(now),
		Namespace: p.Name.Service.Namespace, Service: p.Name.Service.Name, Port: p.Name.Port,
		PortNumber: p.Spec.Port, Protocol: uint8(p.Name.Protocol), Family: uint8(p.Family), Pool: in.Pool,
		InternalPolicyLocal: in.Service.InternalLocal, ExternalPolicyLocal: in.Service.ExternalLocal,
		SessionAffinityMS: in.Service.Affinity.Milliseconds(),
		Node:              in.Node, NodeIndex: abi.NoIndex, Zone: in.Zone, Zones: c.zones, Endpoints: eps,
		ConnectionsAgeMS: abi.NoAge, Keys: c.keys,
	}
	if needs&abi.NeedNodes != 0 && in.NodeCount > 0 {
		c.Request.NodeIndex, c.Request.NodeCount = in.NodeIndex, in.NodeCount
	}
	c.Request.Begin()
	b.addValues(c, in)
	return b.addSignals(&c.Request, needs, now)
}

// appendZones appends in.Zones to zones, which is empty, if a plugin needs Nodes, otherwise this node's zone only; both with the
// zones that only endpoints name, and with the numbers of ready, serving and all endpoints. Input that no plugin of the chain
// needs is left out, so that answers do not depend on the needs of other Services' plugins.
func appendZones(zones []abi.Zone, in *Input, needs uint32) []abi.Zone {
	switch {
	case needs&abi.NeedNodes != 0:
		zones = append(zones, in.Zones...)
	case in.Zone != "":
		zones = append(zones, abi.Zone{Name: in.Zone})
	}
	for i := range zones {
		zones[i].Ready, zones[i].Serving, zones[i].Total = 0, 0, 0
	}
	for i := range in.Port.Endpoints {
		e := &in.Port.Endpoints[i]
		if e.Zone == "" {
			continue
		}
		at, ok := slices.BinarySearchFunc(zones, e.Zone, func(z abi.Zone, name string) int { return strings.Compare(z.Name, name) })
		if !ok {
			zones = slices.Insert(zones, at, abi.Zone{Name: e.Zone})
		}
		z := &zones[at]
		z.Total++
		if e.Ready {
			z.Ready++
		}
		if e.Serving {
			z.Serving++
		}
	}
	return zones
}

// conditions returns the condition bits of an endpoint, abi.Ready to abi.Held.
func conditions(in *Input, i int) uint32 {
	e := &in.Port.Endpoints[i]
	var bits uint32
	if e.Ready {
		bits |= abi.Ready
	}
	if e.Serving {
		bits |= abi.Serving
	}
	if e.Terminating {
		bits |= abi.Terminating
	}
	if e.Local {
		bits |= abi.Local
	}
	if chosen(in, i) {
		bits |= abi.Chosen
	}
	if e.HintedZone {
		bits |= abi.HintedZone
	}
	if e.HintedNode {
		bits |= abi.HintedNode
	}
	switch local := in.Pool == abi.PoolLocal; {
	case e.Eligible():
		bits |= abi.Eligible
	case e.Held(local):
		bits |= abi.Eligible | abi.Held
	}
	return bits
}
