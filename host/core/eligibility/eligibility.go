// Package eligibility implements the endpoint selection rules of kube-proxy (KEP-1669, KEP-2086, KEP-2433, KEP-3015): which
// endpoints of a Service port may get cluster and local traffic on this node. It is pure.
package eligibility

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// NodeInfo is the input of the rules about this node and its configuration.
type NodeInfo struct {
	Node string // name
	Zone string // "" when unknown
	// MaxEndpoints of a Service port in one family; 0: no limit. The first ones are used, in the order of the slices, which is
	// that of their names.
	MaxEndpoints int
	Endpoints    *EndpointRules // nil: every address may be an endpoint
}

// Port is a Service port in one family with all its endpoints.
type Port struct {
	Name         model.PortName
	Spec         model.ServicePort
	Family       model.Family
	Endpoints    []Endpoint // sorted by address, unique
	Omitted      int        // endpoints beyond NodeInfo.MaxEndpoints
	Refused      int        // endpoints that NodeInfo.Endpoints refuses
	FirstRefusal error      // why, for the first one
	UsesCluster  bool       // the cluster pool is used
	UsesLocal    bool       // the local pool is used
	// HasEligible reports whether there is an eligible endpoint on any node. If so, an empty local pool drops connections instead
	// of rejecting them.
	HasEligible bool
	// Topology is which hints apply to the cluster pool.
	Topology Topology
	// Hints is why topology hints of the cluster pool are not followed.
	Hints  IgnoredHints
	noZone bool // this node has none
}

// Endpoint is an endpoint of a Service port, merged from its EndpointSlices.
type Endpoint struct {
	Addr         netip.AddrPort
	Node         string
	Zone         string
	Pod          string
	Ready        bool
	Serving      bool
	Terminating  bool
	Local        bool // on this node
	HintedZone   bool // hinted for this node's zone
	HintedNode   bool // hinted for this node
	InCluster    bool // chosen for the cluster pool
	InLocal      bool // chosen for the local pool
	HeldCluster  bool // counts as ready in the cluster pool, see Hold
	HeldLocal    bool // counts as ready in the local pool
	HasZoneHints bool // has zone hints
	HasNodeHints bool // has node hints

	slice int32 // its position in the list of slices, until it is merged
}

// Eligible reports whether the endpoint's conditions allow new connections to it: it is ready, or serving while terminating.
func (e *Endpoint) Eligible() bool { return e.Ready || e.Serving && e.Terminating }

// Held reports whether the endpoint counts as ready in a pool although it is not, see Port.Hold.
func (e *Endpoint) Held(local bool) bool {
	if local {
		return e.HeldLocal
	}
	return e.HeldCluster
}

// EligibleIn is Eligible for a pool, including held endpoints.
func (e *Endpoint) EligibleIn(local bool) bool { return e.Eligible() || e.Held(local) }

// Topology selects the topology hints that apply.
type Topology uint8

// The topology modes. Hints apply only if all ready endpoints have one and one of them matches this node.
const (
	NoTopology Topology = iota
	SameNode
	SameZone
)

func (t Topology) String() string { return [...]string{"none", "same node", "same zone"}[t] }

// IsExternal reports whether a Service port has a NodePort or an external address in a family. Otherwise the external traffic
// policy does not apply.
func IsExternal(svc *model.Service, p *model.ServicePort, f model.Family) bool {
	of := func(a netip.Addr) bool { return model.FamilyOf(a) == f }
	return p.NodePort != 0 || slices.ContainsFunc(svc.ExternalIPs, of) || slices.ContainsFunc(svc.LoadBalancerIPs, of)
}

// SelectEndpoints applies the rules to a Service port in one family.
func SelectEndpoints(svc *model.Service, p *model.ServicePort, f model.Family, endpointSlices []*model.EndpointSlice, node NodeInfo) *Port {
	return SelectEndpointsInto(&Port{}, svc, p, f, endpointSlices, node)
}

// SelectEndpointsInto is like SelectEndpoints, but overwrites out and reuses its memory.
func SelectEndpointsInto(out *Port, svc *model.Service, p *model.ServicePort, f model.Family, endpointSlices []*model.EndpointSlice, node NodeInfo) *Port {
	*out = Port{
		Name:      model.PortName{Service: svc.Name, Port: p.Name, Protocol: p.Protocol},
		Spec:      *p,
		Family:    f,
		Endpoints: out.Endpoints[:0],
		noZone:    node.Zone == "",
	}
	external := IsExternal(svc, p, f)
	out.UsesCluster = !svc.InternalLocal || external
	out.UsesLocal = svc.InternalLocal || svc.ExternalLocal && external
	out.merge(endpointSlices, node)
	out.markChosen()
	return out
}

// Use makes the port have pools that its Service does not use, and chooses their endpoints: others distribute connections to
// them.
func (p *Port) Use(cluster, local bool) {
	p.UsesCluster, p.UsesLocal = p.UsesCluster || cluster, p.UsesLocal || local
	p.markChosen()
}

// merge merges the endpoints of all slices. Of several with the same address and port, outdated ones of the same Pod do not
// count, see choose. Then one that is not terminating takes precedence (it is a new Pod with the address of the old one), then a
// ready one, then one on this node.
func (out *Port) merge(endpointSlices []*model.EndpointSlice, node NodeInfo) {
	n := 0
	each := func(f func(endpoints []model.SliceEndpoint, port uint16, slice int)) {
		for i, s := range endpointSlices {
			if s.Family != out.Family || len(s.Endpoints) == 0 {
				continue
			}
			want := model.SlicePort{Name: out.Spec.Name, Protocol: out.Spec.Protocol}
			at, _ := slices.BinarySearchFunc(s.Ports, want, model.SlicePort.Compare)
			for ; at < len(s.Ports) && s.Ports[at].Compare(want) == 0; at++ {
				if port := s.Ports[at].Port; port != 0 {
					f(s.Endpoints, port, i)
				}
			}
		}
	}
	each(func(endpoints []model.SliceEndpoint, _ uint16, _ int) { n += len(endpoints) })
	if node.MaxEndpoints > 0 && n > node.MaxEndpoints {
		out.Omitted, n = n-node.MaxEndpoints, node.MaxEndpoints
	}
	eps := slices.Grow(out.Endpoints, n)
	each(func(endpoints []model.SliceEndpoint, port uint16, slice int) {
		for i := range endpoints[:min(len(endpoints), n)] {
			n--
			if err := node.Endpoints.Check(endpoints[i].Addr); err != nil {
				if out.Refused++; out.Refused == 1 {
					out.FirstRefusal = err
				}
				continue
			}
			eps = append(eps, newEndpoint(&endpoints[i], port, node))
			eps[len(eps)-1].slice = int32(slice)
		}
	})
	sortEndpoints(eps)
	unique := eps[:0]
	for first, end := 0, 1; first < len(eps); first, end = end, end+1 {
		for ; end < len(eps) && eps[end].Addr == eps[first].Addr; end++ {
		}
		e := &eps[first]
		if end > first+1 {
			e = choose(eps[first:end], endpointSlices)
		}
		e.slice = 0
		unique = append(unique, *e)
	}
	out.Endpoints = unique
}

// choose returns the endpoint that counts of several with the same address, which are sorted. Of those of the same Pod, an entry
// is outdated if its slice was written before that of another one: the controller has moved the Pod, and the news of the slice
// that had it has not arrived. The order is that of the slices' versions or, if one has none, of their trigger times; slices
// without one are not compared.
func choose(same []Endpoint, endpointSlices []*model.EndpointSlice) *Endpoint {
	var best *Endpoint
	for first, end := 0, 0; first < len(same); first = end {
		versioned := true
		for ; end < len(same) && same[end].Pod == same[first].Pod; end++ {
			versioned = versioned && endpointSlices[same[end].slice].Version != 0
		}
		written := func(e *Endpoint) uint64 {
			if versioned {
				return endpointSlices[e.slice].Version
			}
			return uint64(max(endpointSlices[e.slice].Trigger, 0))
		}
		pod, last := same[first:end], uint64(0)
		for i := range pod {
			last = max(last, written(&pod[i]))
		}
		for i := range pod {
			e := &pod[i]
			if at := written(e); e.Pod != "" && at != 0 && at < last {
				continue
			}
			if best == nil || comparePreference(e, best) < 0 {
				best = e
			}
		}
	}
	return best
}

// place is where an endpoint is in a list that is not sorted.
type place struct {
	high, low uint64 // of its address
	port      uint16
	index     int32
}

// manyEndpoints is from how many endpoints on their places are sorted first, which are a third as large.
const manyEndpoints = 100

// sortEndpoints sorts endpoints by address, those with the same one by Pod, then by preference.
func sortEndpoints(eps []Endpoint) {
	compare := func(a, b Endpoint) int { return compareEndpoints(&a, &b) }
	if len(eps) < manyEndpoints || slices.IsSortedFunc(eps, compare) {
		slices.SortFunc(eps, compare)
		return
	}
	places := make([]place, len(eps))
	for i := range eps {
		a := eps[i].Addr.Addr().As16()
		places[i] = place{binary.BigEndian.Uint64(a[:]), binary.BigEndian.Uint64(a[8:]), eps[i].Addr.Port(), int32(i)}
	}
	slices.SortFunc(places, func(a, b place) int {
		if c := cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low), cmp.Compare(a.port, b.port)); c != 0 {
			return c
		}
		return compareEndpoints(&eps[a.index], &eps[b.index])
	})
	const moved = -1
	for i := range places {
		if places[i].index == moved {
			continue
		}
		first, to := eps[i], i
		for {
			from := int(places[to].index)
			places[to].index = moved
			if from == i {
				eps[to] = first
				break
			}
			eps[to], to = eps[from], from
		}
	}
}

// compareEndpoints orders endpoints by address, those with the same one by Pod, then by preference.
func compareEndpoints(a, b *Endpoint) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.Pod, b.Pod), comparePreference(a, b))
}

// comparePreference orders endpoints with the same address by preference.
func comparePreference(a, b *Endpoint) int {
	return cmp.Or(preference(b)-preference(a),
		strings.Compare(a.Node, b.Node), strings.Compare(a.Zone, b.Zone), strings.Compare(a.Pod, b.Pod))
}

// preference is a total order of duplicates that differ in conditions, so that the order of slices does not matter.
func preference(e *Endpoint) (score int) {
	for _, b := range []bool{!e.Terminating, e.Ready, e.Local, e.Serving,
		e.HintedZone, e.HintedNode, e.HasZoneHints, e.HasNodeHints} {
		score *= 2
		if b {
			score++
		}
	}
	return score
}

func newEndpoint(e *model.SliceEndpoint, port uint16, node NodeInfo) Endpoint {
	return Endpoint{
		Addr:         netip.AddrPortFrom(e.Addr, port),
		Node:         e.Node,
		Zone:         e.Zone,
		Pod:          e.Pod,
		Ready:        e.Ready,
		Serving:      e.Serving,
		Terminating:  e.Terminating,
		Local:        e.Node != "" && e.Node == node.Node,
		HintedZone:   node.Zone != "" && slices.Contains(e.ForZones(), node.Zone),
		HintedNode:   slices.Contains(e.ForNodes(), node.Node),
		HasZoneHints: len(e.ForZones()) > 0,
		HasNodeHints: len(e.ForNodes()) > 0,
	}
}

// Hold makes endpoints count as ready in the cluster pool and in the local pool, and chooses again. The lists are parallel to
// Endpoints; nil holds none.
func (p *Port) Hold(cluster, local []bool) {
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		e.HeldCluster, e.HeldLocal = cluster != nil && cluster[i], local != nil && local[i]
	}
	p.markChosen()
}

// markChosen chooses the endpoints of the cluster and local pools. Each falls back to terminating endpoints that still serve,
// independently of the other. Topology applies only to ready endpoints of the cluster pool.
func (p *Port) markChosen() {
	p.Topology, p.Hints = topologyFor(p.Endpoints)
	if p.Hints.zones && p.noZone {
		p.Hints.Why = HintsNodeWithoutZone
	}
	var ready, localReady bool
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		ready = ready || e.Ready || e.HeldCluster
		localReady = localReady || (e.Ready || e.HeldLocal) && e.Local
		p.HasEligible = p.HasEligible || e.Eligible() || e.HeldCluster || e.HeldLocal
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		fallback := e.Serving && e.Terminating
		if p.UsesCluster {
			e.InCluster = (e.Ready || e.HeldCluster) && p.Topology.allows(e) || !ready && fallback
		}
		if p.UsesLocal && e.Local {
			e.InLocal = e.Ready || e.HeldLocal || !localReady && fallback
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

// IgnoredHints is why topology hints are not followed.
type IgnoredHints struct {
	Why HintsIgnored
	// Of the ready endpoints, Without have no hint; with HintsMissing.
	Ready, Without uint32
	zones          bool // zone hints are meant, not those for nodes
}

// HintsIgnored is a reason why topology hints are not followed.
type HintsIgnored uint8

// The reasons. HintsFollowed is also for endpoints without any hint.
const (
	HintsFollowed        HintsIgnored = iota
	HintsMissing                      // a ready endpoint has no hint
	HintsElsewhere                    // no ready endpoint is hinted for this zone or node
	HintsNodeWithoutZone              // this node has no zone
)

// String returns the reason in words; "": there is none.
func (h IgnoredHints) String() string {
	of := "node"
	if h.zones {
		of = "zone"
	}
	switch h.Why {
	case HintsMissing:
		return fmt.Sprintf("%d of %d ready endpoints have no hint for a %s", h.Without, h.Ready, of)
	case HintsElsewhere:
		return "no ready endpoint has a hint for the " + of + " of this node"
	case HintsNodeWithoutZone:
		return "this node has no zone (label topology.kubernetes.io/zone)"
	}
	return ""
}

func topologyFor(eps []Endpoint) (Topology, IgnoredHints) {
	ready, withNodeHint, withZoneHint := 0, 0, 0
	nodeHinted, zoneHinted := false, false
	for i := range eps {
		e := &eps[i]
		if !e.Ready && !e.HeldCluster {
			continue
		}
		ready++
		if e.HasNodeHints {
			withNodeHint++
			nodeHinted = nodeHinted || e.HintedNode
		}
		if e.HasZoneHints {
			withZoneHint++
			zoneHinted = zoneHinted || e.HintedZone
		}
	}
	switch {
	case ready > 0 && withNodeHint == ready && nodeHinted:
		return SameNode, IgnoredHints{}
	case ready > 0 && withZoneHint == ready && zoneHinted:
		return SameZone, IgnoredHints{}
	case withNodeHint+withZoneHint == 0:
		return NoTopology, IgnoredHints{}
	}
	ignored := IgnoredHints{Why: HintsElsewhere, Ready: uint32(ready), zones: withZoneHint > 0}
	with := withNodeHint
	if ignored.zones {
		with = withZoneHint
	}
	if with < ready {
		ignored.Why, ignored.Without = HintsMissing, uint32(ready-with)
	}
	return NoTopology, ignored
}

// Explain returns a human-readable reason why an endpoint is or is not in the pools.
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
	case p.UsesCluster && p.Hints.Why == HintsMissing && p.Hints.zones && !e.HasZoneHints,
		p.UsesCluster && p.Hints.Why == HintsMissing && !p.Hints.zones && !e.HasNodeHints:
		return "ready, without a hint"
	case !p.UsesCluster && !e.Local:
		return "ready, but not on this node (traffic policy Local)"
	}
	return "ready"
}
