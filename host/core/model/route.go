package model

import (
	"cmp"
	"slices"
	"strings"
)

// Kinds of Route.
const (
	TCPRouteKind = "TCPRoute"
	UDPRouteKind = "UDPRoute"
)

// Route is a TCPRoute or UDPRoute of the Gateway API whose parents are Services of its namespace: it splits new connections to
// them over the endpoints of other Services.
type Route struct {
	Name     ObjectName
	Created  int64 // creation time, Unix seconds; 0 when unknown
	Parents  []RouteParent
	Backends []RouteBackend
}

// RouteParent is ports of a Service of the route's namespace.
type RouteParent struct {
	Service string
	Section string // name of the port; "": any
	Port    uint16 // its number; 0: any
}

// RouteBackend is a Service port of the route's namespace, and its share: Weight of the sum of all weights.
type RouteBackend struct {
	Service string
	Port    uint16
	Weight  uint32 // at most MaxRouteWeight
	// Reason is why the reference cannot be followed, as a condition ResolvedRefs has it, and Why the same in words; "": it can.
	Reason, Why string
}

// MaxRouteWeight is the greatest weight of a backend.
const MaxRouteWeight = 1_000_000

// Protocol returns the protocol of the connections.
func (r *Route) Protocol() Protocol {
	if r.Name.Kind == UDPRouteKind {
		return UDP
	}
	return TCP
}

// Compare orders routes by precedence: by age, then by name.
func (r *Route) Compare(s *Route) int {
	return cmp.Or(cmp.Compare(r.Created, s.Created), r.Name.Name.Compare(s.Name.Name), strings.Compare(r.Name.Kind, s.Name.Kind))
}

// Names reports whether a parent is a port of a Service that is called name.
func (r *Route) Names(p *RouteParent, name string, port *ServicePort) bool {
	return p.Service == name && port.Protocol == r.Protocol() && (p.Section == "" || p.Section == port.Name) && (p.Port == 0 || p.Port == port.Port)
}

// Attaches reports whether a port of a Service is among the parents.
func (r *Route) Attaches(svc *Service, port *ServicePort) bool {
	return r.Name.Name.Namespace == svc.Name.Namespace &&
		slices.ContainsFunc(r.Parents, func(p RouteParent) bool { return r.Names(&p, svc.Name.Name, port) })
}

// FirstRoute returns the route of a port: the first of those, in the order of Compare, that has it as a parent; nil: none has.
func FirstRoute(sorted []*Route, svc *Service, port *ServicePort) *Route {
	for _, r := range sorted {
		if r.Attaches(svc, port) {
			return r
		}
	}
	return nil
}

// Services returns the names of the parents, and of the backends that can be followed, each sorted.
func (r *Route) Services() (parents, backends []Name) {
	if r == nil {
		return nil, nil
	}
	for i := range r.Parents {
		parents = append(parents, Name{r.Name.Name.Namespace, r.Parents[i].Service})
	}
	for i := range r.Backends {
		if b := &r.Backends[i]; b.Reason == "" {
			backends = append(backends, Name{r.Name.Name.Namespace, b.Service})
		}
	}
	for _, list := range []*[]Name{&parents, &backends} {
		slices.SortFunc(*list, Name.Compare)
		*list = slices.Compact(*list)
	}
	return parents, backends
}

// Reasons of conditions of routes.
const (
	RouteBackendNotFound     = "BackendNotFound"
	RouteInvalidKind         = "InvalidKind"
	RouteRefNotPermitted     = "RefNotPermitted"
	RouteUnsupportedProtocol = "UnsupportedProtocol"
	RouteUnsupportedValue    = "UnsupportedValue"
)

// Resolve returns the port of a backend's Service, nil if there is none, and then why, as RouteBackend has it. A nil svc is none.
func (r *Route) Resolve(b *RouteBackend, svc *Service) (port *ServicePort, reason, why string) {
	switch {
	case b.Reason != "":
		return nil, b.Reason, b.Why
	case svc == nil:
		return nil, RouteBackendNotFound, "there is no such Service, or it is headless, of type ExternalName, or for another proxy"
	}
	reason, why = RouteBackendNotFound, "the Service has no such port"
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Port == b.Port {
			if p.Protocol == r.Protocol() {
				return p, "", ""
			}
			reason, why = RouteUnsupportedProtocol, "the port of the Service has protocol "+p.Protocol.String()
		}
	}
	return nil, reason, why
}
