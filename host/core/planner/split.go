package planner

import (
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Split is how a route splits the connections to a Service port in one family.
type Split struct {
	Route *model.Route
	Parts []SplitPart // parallel to Route.Backends
	// Decision has the endpoints of all parts.
	Decision policy.PortDecision
	from     []splitEndpoint // by endpoint of Decision
	by       *policy.Policy  // that sheds connections with the least limit; nil: none does
	outcomes bool            // a backend counts those of connections to its endpoints
}

// SplitPart is the part of a backend.
type SplitPart struct {
	Backend model.PortName // without a name of the port if there is none
	Pools   [2]SplitShare  // abi.PoolCluster, abi.PoolLocal
	Why     string         // it has no endpoints; "": it has
	decided *recorded      // nil: nothing
	at      []int32        // where its endpoints are in the Decision, as far as they are not left out
}

// SplitShare is the part of a backend in a pool.
type SplitShare struct {
	Wanted  float64 // of all connections
	Held    float64 // of all connections, as the weights have it
	Refused bool    // these are refused
	LeftOut bool    // it has endpoints on other nodes only, and the others get its share
}

// splitEndpoint is where an endpoint is from: a part, and the index there.
type splitEndpoint struct{ part, index int }

// Explain returns the part that an endpoint is from, and why it is in pools there or not.
func (s *Split) Explain(i int) (part int, why string) {
	at := s.from[i]
	of := &s.Parts[at.part]
	return at.part, of.decided.decision.Port.Explain(&of.endpoints()[at.index])
}

// split splits a port of a Service in one family. own is the record of the Service itself. It returns nil while something has
// not been decided: then the Service is planned again.
func (w *world) split(svc *model.Service, port *model.ServicePort, f model.Family, route *model.Route, own *Record) *Split {
	return NewSplit(svc, port, f, route, w.settings.ServiceLimits.Endpoints, func(name model.Name) (k *Record, known bool) {
		switch of := w.services[name]; {
		case w.cluster.Services[name] == nil:
			return nil, true
		case own != nil && name == svc.Name:
			return own, true
		case of != nil:
			k = of.record
		}
		return k, k != nil
	})
}

// NewSplit splits a port of a Service in one family over the backends of a route. limit bounds the number of endpoints; 0: none
// does. recordOf returns what has been decided about a Service, nil if there is no such Service, and whether that is known. It
// returns nil while something is not known.
func NewSplit(svc *model.Service, port *model.ServicePort, f model.Family, route *model.Route, limit int,
	recordOf func(model.Name) (k *Record, known bool),
) *Split {
	s := &Split{Route: route, Parts: make([]SplitPart, len(route.Backends))}
	external := eligibility.IsExternal(svc, port, f)
	joined := &eligibility.Port{
		Name: model.PortName{Service: svc.Name, Port: port.Name, Protocol: port.Protocol}, Spec: *port, Family: f,
		UsesCluster: !svc.InternalLocal || external, UsesLocal: svc.InternalLocal || svc.ExternalLocal && external,
	}
	for i := range route.Backends {
		if !s.addPart(i, svc, joined, recordOf) {
			return nil
		}
	}
	s.Decision.Port = joined
	s.join(limit)
	if joined.UsesCluster {
		s.decide(&s.Decision.Cluster, abi.PoolCluster)
	}
	if joined.UsesLocal {
		s.decide(&s.Decision.Local, abi.PoolLocal)
	}
	return s
}

// addPart finds what has been decided about a backend, and reports whether that is known.
func (s *Split) addPart(i int, svc *model.Service, joined *eligibility.Port, recordOf func(model.Name) (*Record, bool)) (known bool) {
	b, part := &s.Route.Backends[i], &s.Parts[i]
	name := model.Name{Namespace: svc.Name.Namespace, Name: b.Service}
	part.Backend = model.PortName{Service: name, Protocol: joined.Name.Protocol}
	var k *Record
	var of *model.Service
	if b.Reason == "" {
		if k, known = recordOf(name); !known || k != nil && joined.UsesLocal && !k.local {
			return false
		}
		if k != nil {
			of = k.svc
		}
	}
	port, _, why := s.Route.Resolve(b, of)
	if part.Why = why; port == nil {
		return true
	}
	part.Backend.Port = port.Name
	s.outcomes = s.outcomes || k.outcomes
	switch part.decided = k.port(port, joined.Family); {
	case !of.HasFamily(joined.Family):
		part.Why = "the Service has no " + joined.Family.String()
	case part.decided == nil:
		part.Why = "serviceLimits leave the port out"
	case len(part.decided.decision.Port.Endpoints) == 0:
		part.Why = "the Service has no endpoints"
	}
	return true
}

// join makes the endpoints of the parts those of the port, sorted by address and unique. If they are more than limit, as many of
// each part are left out that each of the parts has room for the same number.
func (s *Split) join(limit int) {
	rest := make([]int, len(s.Parts)) // endpoints to take, of the first ones
	for i := range s.Parts {
		rest[i] = len(s.Parts[i].endpoints())
	}
	room := roomFor(rest, limit)
	p, n := s.Decision.Port, 0
	for i := range rest {
		p.Omitted += max(0, rest[i]-room)
		rest[i] = min(rest[i], room)
		n += rest[i]
		s.Parts[i].at = make([]int32, 0, rest[i])
	}
	p.Endpoints, s.from = make([]eligibility.Endpoint, 0, n), make([]splitEndpoint, 0, n)
	for ; n > 0; n-- {
		first := -1
		for i := range s.Parts {
			if len(s.Parts[i].at) < rest[i] && (first < 0 || s.Parts[i].head().Addr.Compare(s.Parts[first].head().Addr) < 0) {
				first = i
			}
		}
		s.take(first)
	}
}

// take adds the next endpoint of a part.
func (s *Split) take(part int) {
	of, p := &s.Parts[part], s.Decision.Port
	e := *of.head()
	e.Serving, e.HeldCluster, e.HeldLocal = e.Serving || e.HeldCluster || e.HeldLocal, false, false
	p.HasEligible = p.HasEligible || s.Route.Backends[part].Weight > 0 && of.decided.decision.Port.HasEligible
	if n := len(p.Endpoints); n == 0 || p.Endpoints[n-1].Addr != e.Addr {
		s.from = append(s.from, splitEndpoint{part, len(of.at)})
		p.Endpoints = append(p.Endpoints, e)
	} else {
		o := &p.Endpoints[n-1]
		o.Ready, o.Serving, o.Terminating = o.Ready || e.Ready, o.Serving || e.Serving, o.Terminating && e.Terminating
		o.InCluster, o.InLocal, o.Local = o.InCluster || e.InCluster, o.InLocal || e.InLocal, o.Local || e.Local
		if e.Node == "" || e.Local { // it may be, or is, on this node
			o.Node = e.Node
		}
	}
	of.at = append(of.at, int32(len(p.Endpoints)-1))
}

// endpoints returns the endpoints of a part.
func (p *SplitPart) endpoints() []eligibility.Endpoint {
	if p.decided == nil {
		return nil
	}
	return p.decided.decision.Port.Endpoints
}

// head returns the first endpoint that has not been taken.
func (p *SplitPart) head() *eligibility.Endpoint { return &p.endpoints()[len(p.at)] }

// roomFor returns how many of each size fit into limit in all; 0 is no limit.
func roomFor(sizes []int, limit int) int {
	sum := 0
	for _, n := range sizes {
		sum += n
	}
	if limit == 0 || sum <= limit {
		return math.MaxInt
	}
	sorted := slices.Sorted(slices.Values(sizes))
	for i, n := range sorted {
		if each := limit / (len(sorted) - i); n > each {
			return each
		}
		limit -= n
	}
	return math.MaxInt
}
