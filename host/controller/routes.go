package controller

import (
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Conditions of routes, and reasons that model does not have.
const (
	conditionAccepted     = "Accepted"
	conditionResolvedRefs = "ResolvedRefs"

	routeAccepted         = "Accepted"
	routeNoMatchingParent = "NoMatchingParent"
	routeNotAllowed       = "NotAllowedByListeners"
	routeConflicted       = "Conflicted"
)

// maxParents is how many entries the status of a route has, by its schema.
const maxParents = 32

// routeView is a TCPRoute or UDPRoute.
type routeView struct {
	object   *gatewayapi.Route
	route    *model.Route // nil: none of its parents is a Service of its namespace
	problems []source.Problem
}

// addRoutes adds the routes of the caches.
func (v *view) addRoutes(c *caches) {
	v.routes, v.byParent = map[model.ObjectName]*routeView{}, map[model.Name][]*model.Route{}
	for kind, store := range map[string]interface{ List() []any }{model.TCPRouteKind: c.tcpRoutes.GetStore(), model.UDPRouteKind: c.udpRoutes.GetStore()} {
		for _, o := range store.List() {
			object, ok := o.(*gatewayapi.Route)
			if !ok {
				continue
			}
			of := &routeView{object: object}
			of.route, of.problems = source.Route(kind, object)
			v.routes[model.ObjectName{Kind: kind, Name: model.Name{Namespace: object.Namespace, Name: object.Name}}] = of
			parents, _ := of.route.Services()
			for _, p := range parents {
				v.byParent[p] = append(v.byParent[p], of.route)
			}
		}
	}
	for _, list := range v.byParent {
		slices.SortFunc(list, (*model.Route).Compare)
	}
}

// routeStatus returns a copy of a route with the status that it should have, and whether that differs. Entries of other
// controllers stay as they are; beyond maxParents, parents have none.
func (v *view) routeStatus(name model.ObjectName, of *routeView) (out *gatewayapi.Route, differs bool) {
	out = of.object.DeepCopy()
	before := out.Status.Parents
	out.Status.Parents = nil
	reported := make([]bool, len(of.object.Spec.ParentRefs))
	for _, raw := range before {
		var old gatewayapi.ParentStatus
		if err := json.Unmarshal(raw.Raw, &old); err != nil || old.ControllerName != Name {
			out.Status.Parents = append(out.Status.Parents, raw)
			continue
		}
		i := slices.IndexFunc(of.object.Spec.ParentRefs, func(p gatewayapi.ParentRef) bool { return equal(p, old.ParentRef) })
		if i < 0 || reported[i] || !source.IsServiceParent(&of.object.Spec.ParentRefs[i]) {
			differs = true
			continue
		}
		reported[i] = true
		now := old
		now.Conditions = slices.Clone(old.Conditions)
		if v.parentStatus(name, of, &now); !equal(now, old) {
			raw, differs = encode(&now), true
		}
		out.Status.Parents = append(out.Status.Parents, raw)
	}
	for i := range of.object.Spec.ParentRefs {
		ref := &of.object.Spec.ParentRefs[i]
		if reported[i] || !source.IsServiceParent(ref) || len(out.Status.Parents) >= maxParents {
			continue
		}
		now := gatewayapi.ParentStatus{ParentRef: *ref, ControllerName: Name}
		v.parentStatus(name, of, &now)
		out.Status.Parents, differs = append(out.Status.Parents, encode(&now)), true
	}
	return out, differs
}

func encode(s *gatewayapi.ParentStatus) runtime.RawExtension {
	text, _ := json.Marshal(s) // of strings and numbers
	return runtime.RawExtension{Raw: text}
}

// parentStatus sets the conditions of a parent.
func (v *view) parentStatus(name model.ObjectName, of *routeView, s *gatewayapi.ParentStatus) {
	c := conditions{&s.Conditions, of.object.Generation}
	resolved, some := v.resolvedRefs(of)
	accepted := v.acceptedBy(name, of, &s.ParentRef)
	if accepted.reason == "" && !some {
		accepted = verdict{resolved.reason, "no backend can be followed, so all connections are refused"}
	}
	if accepted.reason == "" {
		c.set(conditionAccepted, metav1.ConditionTrue, routeAccepted, "the route splits the connections of the parent")
	} else {
		c.set(conditionAccepted, metav1.ConditionFalse, accepted.reason, "%s", accepted.message)
	}
	if resolved.reason == "" {
		c.set(conditionResolvedRefs, metav1.ConditionTrue, conditionResolvedRefs, "all backends are ports of Services")
	} else {
		c.set(conditionResolvedRefs, metav1.ConditionFalse, resolved.reason, "%s", resolved.message)
	}
}

// acceptedBy returns why a parent has no port that a route splits.
func (v *view) acceptedBy(name model.ObjectName, of *routeView, ref *gatewayapi.ParentRef) verdict {
	if ns := ref.Namespace; ns != nil && *ns != "" && *ns != of.object.Namespace {
		return verdict{routeNotAllowed, "a Service of another namespace: sluice has no routes for the clients of one namespace only"}
	}
	if of.route == nil {
		return verdict{model.RouteUnsupportedValue, problemText(of.problems)}
	}
	svc := v.proxied[model.Name{Namespace: of.object.Namespace, Name: ref.Name}]
	if svc == nil {
		return verdict{routeNoMatchingParent, fmt.Sprintf("there is no Service %s, or it is headless, of type ExternalName, or for another proxy", ref.Name)}
	}
	w := verdict{routeNoMatchingParent, fmt.Sprintf("Service %s has no such port with protocol %s", ref.Name, of.route.Protocol())}
	only := &model.Route{Name: name, Parents: []model.RouteParent{source.RouteParent(ref)}}
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if !only.Attaches(svc, port) {
			continue
		}
		first := model.FirstRoute(v.byParent[svc.Name], svc, port)
		if first == of.route {
			return verdict{}
		}
		if first != nil {
			w = verdict{routeConflicted, fmt.Sprintf("%s %s is older and has the same port", first.Name.Kind, first.Name.Name.Name)}
		}
	}
	return w
}

// resolvedRefs returns why backends of a route cannot be followed, and whether some can.
func (v *view) resolvedRefs(of *routeView) (w verdict, some bool) {
	if of.route == nil {
		return verdict{}, true
	}
	for i := range of.route.Backends {
		b := &of.route.Backends[i]
		port, reason, why := of.route.Resolve(b, v.proxied[model.Name{Namespace: of.object.Namespace, Name: b.Service}])
		if port != nil {
			some = true
			continue
		}
		if w.reason == "" {
			w.reason = reason
		} else {
			w.message += "; "
		}
		w.message += fmt.Sprintf("backend %s, weight %d: %s", b.Service, b.Weight, why)
	}
	return w, some || len(of.route.Backends) == 0
}

func problemText(list []source.Problem) string {
	if len(list) == 0 {
		return "the route cannot be read"
	}
	return list[0].Error()
}
