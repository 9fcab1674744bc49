package plan

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Flow describes the first packet of a new connection.
type Flow struct {
	From netip.Addr
	// Interface is the input interface; "" for packets that this node sends.
	Interface string
	To        netip.AddrPort
	Protocol  model.Protocol
}

// NodeAddrs are the node's own addresses, without loopback addresses.
type NodeAddrs []netip.Addr

// Contains reports whether an address is the node's own; loopback addresses are.
func (n NodeAddrs) Contains(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(n, a) }

// Outcome is what happens to a new connection.
type Outcome struct {
	// Matched reports whether the plan applies. Otherwise the packet is forwarded as if there were no proxy.
	Matched bool
	Verdict Verdict // if Matched
	// Frontend is the frontend of the connection; nil when none listens there and Verdict is that of the address.
	Frontend *Frontend
	Source   SourceClass // class of the source
	Outside  bool        // Frontend.Outside was used instead of Frontend.Pool
	// Candidates are the endpoints that may get the connection, sorted by address; none unless Verdict is Forward. Affinity may
	// restrict them to one.
	Candidates []Candidate
	Why        string // human-readable reason
}

// Candidate is an endpoint that may get the connection.
type Candidate struct {
	Addr       netip.AddrPort
	Weight     uint16
	Share      float64 // probability with balance Random, 0 to 1
	Masquerade bool    // whether the connection is masqueraded
}

// Trace returns what happens to a new connection under p on a node with the given addresses. It defines the meaning of a plan,
// which every backend must implement. It does not consider state of the data plane: established connections and affinity.
func (p *Plan) Trace(flow Flow, node NodeAddrs) Outcome {
	return p.resolve(flow, node, func(a netip.Addr) (at addrUse) {
		for k, f := range p.Frontends {
			if k.Addr == a {
				at = max(at, useBy(k, f))
			}
		}
		return at
	})
}

// Tracer traces many flows under a plan that does not change. Unlike Plan.Trace it does not search all frontends for a flow that
// none matches.
type Tracer struct {
	plan *Plan
	node NodeAddrs
	used map[netip.Addr]addrUse
}

// Tracer returns a Tracer of p, which must not change as long as it is in use.
func (p *Plan) Tracer(node NodeAddrs) *Tracer {
	r := &Tracer{plan: p, node: node, used: map[netip.Addr]addrUse{}}
	for k, f := range p.Frontends {
		r.used[k.Addr] = max(r.used[k.Addr], useBy(k, f))
	}
	return r
}

// Trace is like Plan.Trace.
func (r *Tracer) Trace(flow Flow) Outcome {
	return r.plan.resolve(flow, r.node, func(a netip.Addr) addrUse { return r.used[a] })
}

// addrUse is how frontends use an address; the greatest value applies.
type addrUse uint8

const (
	noUse        addrUse = iota // no frontend has it
	externalUse                 // an external or load balancer address
	clusterIPUse                // a ClusterIP
)

func useBy(k Key, f *Frontend) addrUse {
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
	if f.SourceRanges != nil && !anyContains(f.SourceRanges, flow.From) {
		// Applies before everything else, even a reject, and to Pods and this node too.
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
		hairpin := m.Addr.Addr() == flow.From // the reply would bypass this node
		out.Candidates = append(out.Candidates, Candidate{
			Addr: m.Addr, Weight: m.Weight, Share: float64(m.Weight) / total,
			Masquerade: masquerade && !anyContains(p.Global.NoMasquerade, m.Addr.Addr()) || hairpin,
		})
	}
	out.Why = "the pool for a source " + source.String()
	return out
}

// frontendOf returns the frontend of a flow: of the exact address, otherwise of a NodePort.
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

// withoutFrontend returns the outcome of a flow without a frontend: reject for other ports of a ClusterIP, drop for an unused
// address in a Service range, otherwise no match.
func (p *Plan) withoutFrontend(flow Flow, used addrUse) Outcome {
	switch {
	case used == clusterIPUse:
		return Outcome{Matched: true, Verdict: Reject, Why: "the ClusterIP has no such port"}
	case used == noUse && anyContains(p.Global.ServiceCIDRs, flow.To.Addr()):
		return Outcome{Matched: true, Verdict: Drop, Why: "no Service has this address of the Service range"}
	}
	return Outcome{Why: "no frontend listens here"}
}

// SourceClass classifies the source of a connection.
type SourceClass uint8

// The classes of sources.
const (
	FromOutside SourceClass = iota // any other source; also Pods if they are not detected
	FromPod
	FromNode // this node
)

func (s SourceClass) String() string {
	return [...]string{"outside the cluster", "that is a Pod", "that is this node"}[s]
}

// classify checks for Pods before this node, because an address of the node on the Pod network may be in a Pod range.
func (g *Global) classify(flow Flow, node NodeAddrs) SourceClass {
	switch {
	case anyContains(g.PodSources, flow.From) || g.isPodInterface(flow.Interface):
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

// DetectsPods reports whether Pods are distinguished from other sources of a family.
func (g *Global) DetectsPods(family model.Family) bool {
	return len(g.PodInterfaces) > 0 || slices.ContainsFunc(g.PodSources, func(r netip.Prefix) bool {
		return model.FamilyOf(r.Addr()) == family
	})
}

// masquerades reports whether the frontend masquerades a flow, apart from hairpin, which depends on the endpoint.
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

func anyContains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
