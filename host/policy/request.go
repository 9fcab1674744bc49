package policy

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// build builds the request for the first plugin of the chain, with the weights of the default rules.
func (c *pluginCall) build(m *poolState, in *Input, now time.Time, needs uint32) {
	p := in.Port
	c.portIndex = c.portIndex[:0]
	eps := c.req.Endpoints[:0]
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if in.Pool == abi.PoolLocal && !e.Local {
			continue
		}
		since, bits := m.times.times[i], conditions(in, i)
		eps = append(eps, abi.Endpoint{
			Addr: e.Addr, Conditions: bits, Node: e.Node, Zone: e.Zone,
			Weight: bits / abi.Chosen & 1, PriorWeight: abi.NoWeight,
			ReadySince: milliseconds(since.ready), TerminatingSince: milliseconds(since.terminating), Connections: abi.ConnectionsUnknown,
		})
		c.portIndex = append(c.portIndex, i)
	}
	if m.lastGood != nil {
		j := 0
		m.lastGood.forEach(in, func(i, r int) {
			if j < len(c.portIndex) && c.portIndex[j] == i {
				if r >= 0 {
					eps[j].PriorWeight = int32(m.lastGood.rows[r].weight)
				}
				j++
			}
		})
	}
	c.req = abi.Request{
		Now:       wholeSecond(now),
		Namespace: p.Name.Service.Namespace, Service: p.Name.Service.Name, Port: p.Name.Port,
		PortNumber: p.Spec.Port, Protocol: uint8(p.Name.Protocol), Family: uint8(p.Family), Pool: in.Pool,
		InternalPolicyLocal: in.Service.InternalLocal, ExternalPolicyLocal: in.Service.ExternalLocal,
		SessionAffinityMS: in.Service.Affinity.Milliseconds(),
		Node:              in.Node, Zone: in.Zone, Zones: c.zoneTable(in, needs), Endpoints: eps,
	}
}

// zoneTable returns in.Zones if a plugin needs Nodes, otherwise this node's zone only; both with the zones that only endpoints
// name, and with the number of ready endpoints. Input that no plugin of the chain needs is left out, so that answers do not
// depend on the needs of other Services' plugins.
func (c *pluginCall) zoneTable(in *Input, needs uint32) []abi.Zone {
	c.zones = c.zones[:0]
	switch {
	case needs&abi.NeedNodes != 0:
		c.zones = append(c.zones, in.Zones...)
	case in.Zone != "":
		c.zones = append(c.zones, abi.Zone{Name: in.Zone})
	}
	for i := range c.zones {
		c.zones[i].Ready = 0
	}
	for i := range in.Port.Endpoints {
		e := &in.Port.Endpoints[i]
		if e.Zone == "" {
			continue
		}
		at, ok := slices.BinarySearchFunc(c.zones, e.Zone, func(z abi.Zone, name string) int { return strings.Compare(z.Name, name) })
		if !ok {
			c.zones = slices.Insert(c.zones, at, abi.Zone{Name: e.Zone})
		}
		if e.Ready {
			c.zones[at].Ready++
		}
	}
	return c.zones
}

// conditions returns the condition bits of an endpoint, abi.Ready to abi.HintedNode.
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
	return bits
}

// needs returns the needs of the loaded plugins of a chain.
func (e *Evaluator) needs(p *Policy) (all uint32) {
	for _, s := range p.Steps {
		if plugin, err := e.plugins(s); err == nil {
			all |= plugin.Needs()
		}
	}
	return all
}
