package plan

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/model"
)

// Flow is a new connection as the data plane sees its first packet.
type Flow struct {
	From netip.Addr
	// Interface is where the packet came in; "" for one that this node sends itself.
	Interface string
	To        netip.AddrPort
	Protocol  model.Protocol
}

// NodeAddrs are the node's own addresses. Loopback addresses count as its own without being listed.
type NodeAddrs []netip.Addr

// Contains tells whether an address is the node's own.
func (n NodeAddrs) Contains(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(n, a) }

// Outcome is what becomes of a new connection.
type Outcome struct {
	// Matched is false when the plan has nothing to say: the packet goes where it would go without sluice.
	Matched bool
	Verdict Verdict // when Ours
	// Frontend is what took the connection; nil when none did, and then Verdict is for the address as a whole.
	Frontend *Frontend
	Source   SourceClass // who the connection comes from, as far as the rules care
	Outside  bool        // the Outside pool was used, not Pool
	// Candidates are the endpoints that may get it, sorted by address; none unless Verdict is Forward. Affinity may
	// narrow them to one.
	Candidates []Candidate
	Why        string // for people: what decided
}

// Candidate is an endpoint that may get a connection.
type Candidate struct {
	Addr       netip.AddrPort
	Weight     uint16
	Share      float64 // the probability of being picked by Random, 0 to 1
	Masquerade bool    // the connection gets this node's address as its source
}

// Trace says what becomes of a new connection under p on a node that has the given addresses: the meaning of a
// plan, which every backend has to bring about. It looks at p alone; established connections and affinity are the
// data plane's memory.
func (p *Plan) Trace(flow Flow, node NodeAddrs) Outcome {
	return p.resolve(flow, node, func(a netip.Addr) (at addrUse) {
		for k, f := range p.Frontends {
			if k.Addr == a {
				at = max(at, useOf(k, f))
			}
		}
		return at
	})
}

// Tracer is Plan.Trace for many flows under a plan that does not change meanwhile: a flow that no frontend takes does
// not cost a look at all of them.
type Tracer struct {
	plan *Plan
	node NodeAddrs
	used map[netip.Addr]addrUse
}

// Tracer returns a Tracer.
func (p *Plan) Tracer(node NodeAddrs) *Tracer {
	r := &Tracer{plan: p, node: node, used: map[netip.Addr]addrUse{}}
	for k, f := range p.Frontends {
		r.used[k.Addr] = max(r.used[k.Addr], useOf(k, f))
	}
	return r
}

// Trace is Plan.Trace.
func (r *Tracer) Trace(flow Flow) Outcome {
	return r.plan.resolve(flow, r.node, func(a netip.Addr) addrUse { return r.used[a] })
}

// addrUse is what an address is to a plan; a greater one goes before a lesser one.
type addrUse uint8

const (
	noUse        addrUse = iota // no frontend has it
	externalUse                 // an external or load balancer address
	clusterIPUse                // a ClusterIP
)

func useOf(k Key, f *Frontend) addrUse {
	switch {
	case k.IsNodePort():
		return noUse
	case f.Kind == ClusterIP:
		return clusterIPUse
	}
	return externalUse
}

func (p *Plan) resolve(flow Flow, node NodeAddrs, used func(netip.Addr) addrUse) Outcome {
	source := p.Global.classify(flow, node)
	f := p.frontendOf(flow)
	if f == nil {
		out := p.withoutFrontend(flow, used(flow.To.Addr()))
		out.Source = source
		return out
	}
	out := Outcome{Matched: true, Frontend: f, Source: source}
	if f.SourceRanges != nil && !contain(f.SourceRanges, flow.From) {
		// Before anything else, even a reject; Pods and this node are no exception.
		out.Verdict, out.Why = Drop, "the source is in none of the source ranges"
		return out
	}
	pool := &f.Pool
	if f.Outside != nil && source == FromOutside {
		pool, out.Outside = f.Outside, true
	}
	out.Verdict = pool.Verdict
	if out.Verdict != Forward {
		out.Why = "the pool for a source " + source.String() + " has no endpoint with weight"
		return out
	}
	masquerade := p.Global.masquerades(f, flow, source)
	total := float64(pool.Total())
	out.Candidates = make([]Candidate, 0, len(pool.Endpoints))
	for _, m := range pool.Endpoints {
		if m.Weight == 0 {
			continue
		}
		hairpin := m.Addr.Addr() == flow.From // the answer would not come back through this node
		out.Candidates = append(out.Candidates, Candidate{
			Addr: m.Addr, Weight: m.Weight, Share: float64(m.Weight) / total, Masquerade: masquerade || hairpin,
		})
	}
	out.Why = "the pool for a source " + source.String()
	return out
}

// frontendOf finds what listens where the flow goes: the exact address first, then NodePorts.
func (p *Plan) frontendOf(flow Flow) *Frontend {
	k := Key{Addr: flow.To.Addr(), Port: flow.To.Port(), Protocol: flow.Protocol}
	if f := p.Frontends[k]; f != nil && !k.Addr.IsUnspecified() {
		return f
	}
	if !slices.Contains(p.Global.NodePortAddrs, k.Addr) {
		return nil
	}
	if k.Addr.Is4() {
		k.Addr = netip.IPv4Unspecified()
	} else {
		k.Addr = netip.IPv6Unspecified()
	}
	return p.Frontends[k]
}

// withoutFrontend: the wrong port of an active ClusterIP is rejected, an address of a Service range that no frontend
// has is dropped, anything else is not ours.
func (p *Plan) withoutFrontend(flow Flow, used addrUse) Outcome {
	switch {
	case used == clusterIPUse:
		return Outcome{Matched: true, Verdict: Reject, Why: "the ClusterIP has no such port"}
	case used == noUse && contain(p.Global.ServiceCIDRs, flow.To.Addr()):
		return Outcome{Matched: true, Verdict: Drop, Why: "no Service has this address of the Service range"}
	}
	return Outcome{Why: "no frontend listens here"}
}

// SourceClass is who a connection comes from, as far as Service rules care.
type SourceClass uint8

// The sources.
const (
	FromOutside SourceClass = iota // of the cluster, or of this node when nothing tells Pods from others
	FromPod
	FromNode // this node itself
)

func (s SourceClass) String() string {
	return [...]string{"outside the cluster", "that is a Pod", "that is this node"}[s]
}

// classify: a Pod by either list, before the node itself, whose addresses on the Pod network may lie in a Pod range.
func (g *Global) classify(flow Flow, node NodeAddrs) SourceClass {
	switch {
	case contain(g.PodSources, flow.From) || g.isPodInterface(flow.Interface):
		return FromPod
	case node.Contains(flow.From):
		return FromNode
	}
	return FromOutside
}

func (g *Global) isPodInterface(name string) bool {
	return name != "" && slices.ContainsFunc(g.PodInterfaces, func(pattern string) bool {
		if stem, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, stem)
		}
		return name == pattern
	})
}

// DetectsPods reports whether the plan distinguishes Pods from other sources in a family.
func (g *Global) DetectsPods(family model.Family) bool {
	return len(g.PodInterfaces) > 0 || slices.ContainsFunc(g.PodSources, func(r netip.Prefix) bool {
		return model.FamilyOf(r.Addr()) == family
	})
}

// masquerades applies the frontend's rule; hairpin aside, which depends on the endpoint.
func (g *Global) masquerades(f *Frontend, flow Flow, source SourceClass) bool {
	switch f.Masquerade {
	case MasqueradeAlways:
		return true
	case MasqueradeOutside:
		return source != FromPod && g.DetectsPods(model.FamilyOf(flow.From))
	case MasqueradeFromNode:
		return source == FromNode
	}
	return false
}

func contain(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
