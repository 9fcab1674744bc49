// Package service holds the rules of a Service proxy: which endpoints of a Service port may serve which path on this
// node, and why. It follows kube-proxy's rules (KEP-1669, KEP-2086, KEP-2433, KEP-3015), and is pure.
package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/model"
)

// NodeInfo is what the rules read of this node.
type NodeInfo struct {
	Node string // its name
	Zone string // its zone, "" when unknown
}

// Port is one Service port in one family with all its endpoints.
type Port struct {
	Name        model.PortName
	Spec        model.ServicePort
	Family      model.Family
	Endpoints   []Endpoint // sorted by address, unique
	UsesCluster bool       // some path uses the cluster list
	UsesLocal   bool       // some path uses the local list
	// HasEligible: some endpoint anywhere can serve, so that a path without one drops rather than rejects.
	HasEligible bool
	// Topology is the hint mode in force for the cluster list.
	Topology Topology
}

// Endpoint is an endpoint of a Service port, merged over its EndpointSlices.
type Endpoint struct {
	Addr        netip.AddrPort
	Node        string
	Zone        string
	Pod         string
	Ready       bool
	Serving     bool
	Terminating bool
	Local       bool // on this node
	HintedZone  bool // to this node's zone
	HintedNode  bool // to this node
	InCluster   bool // chosen for the cluster list
	InLocal     bool // chosen for the local list
	forZones    bool
	forNodes    bool
}

// Eligible tells whether a policy may give the endpoint new connections: it is ready, or serving while it terminates.
func (e *Endpoint) Eligible() bool { return e.Ready || e.Serving && e.Terminating }

// Topology says which hints are followed.
type Topology uint8

// The topology modes. Hints are followed only when every ready endpoint has one and one of them matches this node.
const (
	NoTopology Topology = iota
	SameNode
	SameZone
)

func (t Topology) String() string { return [...]string{"none", "same node", "same zone"}[t] }

// IsExternal tells whether a Service port can be reached other than by its ClusterIP, in a family. The external traffic
// policy means nothing otherwise.
func IsExternal(svc *model.Service, p *model.ServicePort, f model.Family) bool {
	of := func(a netip.Addr) bool { return model.FamilyOf(a) == f }
	return p.NodePort != 0 || slices.ContainsFunc(svc.ExternalIPs, of) || slices.ContainsFunc(svc.LoadBalancerIPs, of)
}

// SelectEndpoints applies the rules to one Service port in one family.
func SelectEndpoints(svc *model.Service, p *model.ServicePort, f model.Family, slices []*model.EndpointSlice, facts NodeInfo) *Port {
	return SelectEndpointsInto(&Port{}, svc, p, f, slices, facts)
}

// SelectEndpointsInto is Resolve into a Port that nobody looks at any more, whose memory is used again.
func SelectEndpointsInto(out *Port, svc *model.Service, p *model.ServicePort, f model.Family, slices []*model.EndpointSlice, facts NodeInfo) *Port {
	*out = Port{
		Name:      model.PortName{Service: svc.Name, Port: p.Name, Protocol: p.Protocol},
		Spec:      *p,
		Family:    f,
		Endpoints: out.Endpoints[:0],
	}
	external := IsExternal(svc, p, f)
	out.UsesCluster = !svc.InternalLocal || external
	out.UsesLocal = svc.InternalLocal || svc.ExternalLocal && external
	out.Endpoints = merge(out.Endpoints, slices, p, f, facts)
	out.choose()
	return out
}

// merge collects the endpoints of all slices. Where two give the same address and port, one that does not terminate
// wins (a new Pod may have the address of one that is still there, and is who answers now), then a ready one, then one
// on this node.
func merge(eps []Endpoint, all []*model.EndpointSlice, p *model.ServicePort, f model.Family, facts NodeInfo) []Endpoint {
	n := 0
	for _, s := range all {
		n += len(s.Endpoints)
	}
	eps = slices.Grow(eps, n)
	for _, s := range all {
		if s.Family != f {
			continue
		}
		for i := range s.Ports {
			if s.Ports[i].Name == p.Name && s.Ports[i].Protocol == p.Protocol && s.Ports[i].Port != 0 {
				for j := range s.Endpoints {
					eps = append(eps, endpoint(&s.Endpoints[j], s.Ports[i].Port, facts))
				}
			}
		}
	}
	slices.SortFunc(eps, func(a, b Endpoint) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return cmp.Or(preference(&b)-preference(&a),
			strings.Compare(a.Node, b.Node), strings.Compare(a.Zone, b.Zone), strings.Compare(a.Pod, b.Pod))
	})
	return slices.CompactFunc(eps, func(a, b Endpoint) bool { return a.Addr == b.Addr })
}

// preference orders duplicates totally, so that the order of slices does not matter where they differ in conditions.
func preference(e *Endpoint) (score int) {
	for _, b := range []bool{!e.Terminating, e.Ready, e.Local, e.Serving,
		e.HintedZone, e.HintedNode, e.forZones, e.forNodes} {
		score *= 2
		if b {
			score++
		}
	}
	return score
}

func endpoint(e *model.SliceEndpoint, port uint16, facts NodeInfo) Endpoint {
	return Endpoint{
		Addr:        netip.AddrPortFrom(e.Addr, port),
		Node:        e.Node,
		Zone:        e.Zone,
		Pod:         e.Pod,
		Ready:       e.Ready,
		Serving:     e.Serving,
		Terminating: e.Terminating,
		Local:       e.Node != "" && e.Node == facts.Node,
		HintedZone:  facts.Zone != "" && slices.Contains(e.ForZones(), facts.Zone),
		HintedNode:  slices.Contains(e.ForNodes(), facts.Node),
		forZones:    len(e.ForZones()) > 0,
		forNodes:    len(e.ForNodes()) > 0,
	}
}

// choose marks the cluster and local lists. Their fall-backs to endpoints that terminate but still serve are
// independent of each other, and topology applies to the cluster list's ready endpoints only.
func (p *Port) choose() {
	p.Topology = topology(p.Endpoints)
	var ready, localReady bool
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		ready = ready || e.Ready
		localReady = localReady || e.Ready && e.Local
		p.HasEligible = p.HasEligible || e.Eligible()
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		fallback := e.Serving && e.Terminating
		if p.UsesCluster {
			e.InCluster = e.Ready && p.Topology.allows(e) || !ready && fallback
		}
		if p.UsesLocal && e.Local {
			e.InLocal = e.Ready || !localReady && fallback
		}
	}
}

func (t Topology) allows(e *Endpoint) bool {
	switch t {
	case SameNode:
		return e.HintedNode
	case SameZone:
		return e.HintedZone
	}
	return true
}

func topology(eps []Endpoint) Topology {
	ready, nodes, zones := 0, 0, 0
	node, zone := false, false
	for i := range eps {
		e := &eps[i]
		if !e.Ready {
			continue
		}
		ready++
		if e.forNodes {
			nodes++
			node = node || e.HintedNode
		}
		if e.forZones {
			zones++
			zone = zone || e.HintedZone
		}
	}
	switch {
	case ready > 0 && nodes == ready && node:
		return SameNode
	case ready > 0 && zones == ready && zone:
		return SameZone
	}
	return NoTopology
}

// Explain says in a few words why an endpoint is or is not in the lists, for people.
func (p *Port) Explain(e *Endpoint) string {
	switch {
	case !e.Ready && !e.Serving:
		if e.Terminating {
			return "terminating and no longer serving"
		}
		return "not ready"
	case !e.Ready && !e.Terminating:
		return "not ready"
	case !e.Ready && (e.InCluster || e.InLocal):
		return "terminating, but nothing is ready and it still serves"
	case !e.Ready:
		return "terminating, still serving"
	case p.UsesCluster && !e.InCluster:
		return "ready, but hinted elsewhere (" + p.Topology.String() + ")"
	case p.UsesCluster && p.Topology != NoTopology:
		return "ready, hinted here (" + p.Topology.String() + ")"
	case !p.UsesCluster && !e.Local:
		return "ready, but not on this node (traffic policy Local)"
	}
	return "ready"
}
