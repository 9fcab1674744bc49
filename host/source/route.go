package source

import (
	"cmp"
	"fmt"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// Bounds of a route, those of its schema.
const (
	maxRouteParents  = 32
	maxRouteBackends = 16
)

// Route converts a TCPRoute or UDPRoute; nil: none of its parents is a Service of its namespace. Parents of other kinds are not
// for sluice. It returns nil and problems for a route whose parents or backends exceed the bounds.
func Route(kind string, o *gatewayapi.Route) (*model.Route, []Problem) {
	p := problems{object: kind + " " + o.Namespace + "/" + o.Name}
	r := &model.Route{Name: model.ObjectName{Kind: kind, Name: model.Name{Namespace: o.Namespace, Name: o.Name}}}
	if !o.CreationTimestamp.IsZero() {
		r.Created = o.CreationTimestamp.Unix()
	}
	if len(o.Spec.ParentRefs) > maxRouteParents {
		p.add("spec.parentRefs", "%d parents, more than %d", len(o.Spec.ParentRefs), maxRouteParents)
		return nil, p.all()
	}
	for i := range o.Spec.ParentRefs {
		ref := &o.Spec.ParentRefs[i]
		if deref(ref.Kind, "") == "Service" && deref(ref.Group, gatewayapi.GroupVersion.Group) == gatewayapi.GroupVersion.Group {
			p.warn(fmt.Sprintf("spec.parentRefs[%d].group", i), "Services are in group \"\", which has to be set: the parent is none")
		}
		if !IsServiceParent(ref) || deref(ref.Namespace, "") != "" && *ref.Namespace != o.Namespace {
			continue
		}
		if ref.Port != nil {
			if _, ok := p.port(fmt.Sprintf("spec.parentRefs[%d].port", i), *ref.Port); !ok {
				continue // 0 would be any port
			}
		}
		r.Parents = append(r.Parents, RouteParent(ref))
	}
	if len(r.Parents) == 0 {
		return nil, p.all()
	}
	if len(o.Spec.Rules) > 1 {
		p.add("spec.rules", "%d rules, more than one: the first is used", len(o.Spec.Rules))
	}
	if len(o.Spec.Rules) > 0 {
		refs := o.Spec.Rules[0].BackendRefs
		if len(refs) > maxRouteBackends {
			p.add("spec.rules[0].backendRefs", "%d backends, more than %d", len(refs), maxRouteBackends)
			return nil, p.all()
		}
		for i := range refs {
			r.Backends = append(r.Backends, p.routeBackend(fmt.Sprintf("spec.rules[0].backendRefs[%d]", i), o.Namespace, &refs[i]))
		}
	}
	return r, p.all()
}

// RouteParent converts a parent that is a Service, and whose port is valid.
func RouteParent(ref *gatewayapi.ParentRef) model.RouteParent {
	return model.RouteParent{Service: ref.Name, Section: deref(ref.SectionName, ""), Port: uint16(deref(ref.Port, 0))}
}

// IsServiceParent reports whether a parent is a Service.
func IsServiceParent(ref *gatewayapi.ParentRef) bool {
	return ref.Group != nil && *ref.Group == "" && ref.Kind != nil && *ref.Kind == "Service"
}

// routeBackend converts a backend. What cannot be followed keeps its weight: that part of the connections is refused.
func (p *problems) routeBackend(field, namespace string, ref *gatewayapi.BackendRef) model.RouteBackend {
	b := model.RouteBackend{Service: ref.Name, Weight: 1}
	if w := ref.Weight; w != nil {
		if b.Weight = uint32(min(max(*w, 0), model.MaxRouteWeight)); int64(b.Weight) != int64(*w) {
			p.add(field+".weight", "%d is not between 0 and %d", *w, model.MaxRouteWeight)
		}
	}
	if ref.Port != nil {
		var ok bool
		if b.Port, ok = p.port(field+".port", *ref.Port); !ok {
			b.Reason, b.Why = model.RouteUnsupportedValue, "the port is not between 1 and 65535"
		}
	} else {
		b.Reason, b.Why = model.RouteUnsupportedValue, "no port"
	}
	switch ns := deref(ref.Namespace, ""); {
	case deref(ref.Group, "") != "" || cmp.Or(deref(ref.Kind, ""), "Service") != "Service":
		b.Reason, b.Why = model.RouteInvalidKind, "only Services can be backends"
	case ns != "" && ns != namespace:
		b.Service, b.Reason = ns+"/"+ref.Name, model.RouteRefNotPermitted
		b.Why = "a Service of another namespace, which NodePorts and load balancers would make reachable from outside"
	}
	return b
}
