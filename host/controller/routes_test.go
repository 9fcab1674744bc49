package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// parents returns the entries of a route's status: of this controller the parent with its conditions, of others the text.
func (l *lab) parents(kind, name string) (out []string) {
	l.Helper()
	o, ok, _ := l.routeStore(kind).GetByKey(name)
	if !ok {
		l.Fatalf("no %s %s", kind, name)
	}
	for _, raw := range o.(*gatewayapi.Route).Status.Parents {
		var s gatewayapi.ParentStatus
		if err := json.Unmarshal(raw.Raw, &s); err != nil {
			l.Fatal(err)
		}
		if s.ControllerName != Name {
			out = append(out, string(raw.Raw))
			continue
		}
		for _, c := range s.Conditions {
			if c.ObservedGeneration != o.(*gatewayapi.Route).Generation {
				l.Errorf("%s: condition %s is of generation %d", name, c.Type, c.ObservedGeneration)
			}
		}
		out = append(out, s.ParentRef.Name+" "+short(s.Conditions))
	}
	return out
}

const allGood = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"

// TestStatusOfRoutes: what GEP-1294, GEP-2644 and the conditions of the Gateway API ask for.
func TestStatusOfRoutes(t *testing.T) {
	const web, other = `{group: "", kind: Service, name: web`, `{group: "", kind: Service, name: web, namespace: other}`
	spec := func(parents, backends string) string {
		return "{parentRefs: [" + parents + "], rules: [{backendRefs: [" + backends + "]}]}"
	}
	for _, c := range []struct{ what, spec, want string }{
		{"attached", spec(web+"}", "{name: v1, port: 80}, {name: web, port: 80}"), "web " + allGood},
		{"by port and name", spec(web+", port: 80, sectionName: http}", "{name: v1, port: 80}"), "web " + allGood},
		{"another port", spec(web+", port: 81}", "{name: v1, port: 80}"), "web Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs"},
		{"a port of another protocol", spec(web+", sectionName: dns}", "{name: v1, port: 80}"), "web Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs"},
		{"a headless Service", spec(`{group: "", kind: Service, name: headless}`, "{name: v1, port: 80}"), "headless Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs"},
		{"a consumer's route", spec(other, "{name: v1, port: 80}"), "web Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs"},
		{"no backend exists", spec(web+"}", "{name: v3, port: 80}"), "web Accepted=False/BackendNotFound ResolvedRefs=False/BackendNotFound"},
		{"a backend does not exist", spec(web+"}", "{name: v1, port: 80}, {name: v3, port: 80}"), "web Accepted=True/Accepted ResolvedRefs=False/BackendNotFound"},
		{"a backend of another protocol", spec(web+"}", "{name: v1, port: 80}, {name: web, port: 53}"), "web Accepted=True/Accepted ResolvedRefs=False/UnsupportedProtocol"},
		{"a backend of another namespace", spec(web+"}", "{name: v1, port: 80}, {name: v1, namespace: other, port: 80}"), "web Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted"},
		{"a backend of another kind", spec(web+"}", "{name: v1, port: 80}, {name: x, group: x, kind: Y}"), "web Accepted=True/Accepted ResolvedRefs=False/InvalidKind"},
		{"without backends", spec(web+"}", ""), "web " + allGood},
		{"a Gateway's route", spec("{name: gateway}", "{name: v1, port: 80}"), ""},
		{"too many backends", spec(web+"}", strings.Repeat("{name: v1, port: 80},", 17)), "web Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs"},
	} {
		l := newLab(t)
		l.apply("Service", "shop/web", "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}")
		l.apply("Service", "shop/v1", "{clusterIP: 10.96.0.2, ports: [{port: 80}]}")
		l.apply("Service", "shop/headless", "{clusterIP: None, ports: [{port: 80}]}")
		l.apply(model.TCPRouteKind, "shop/r", c.spec)
		l.sweep()
		if got := strings.Join(l.parents(model.TCPRouteKind, "shop/r"), "; "); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		if again := l.sweep(); len(again) > 0 {
			t.Errorf("%s: nothing has changed, and %v are written", c.what, again)
		}
	}
}

// TestRoutesOfOnePort: the older one is accepted; when it goes, the other one is.
func TestRoutesOfOnePort(t *testing.T) {
	l := newLab(t)
	l.apply("Service", "shop/web", "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}")
	spec := `{parentRefs: [{group: "", kind: Service, name: web}], rules: [{backendRefs: [{name: web, port: 80}]}]}`
	l.apply(model.TCPRouteKind, "shop/first", spec)
	l.apply(model.TCPRouteKind, "shop/second", spec)
	l.apply(model.UDPRouteKind, "shop/second", strings.Replace(spec, "80", "53", 1))
	l.sweep()
	got := fmt.Sprint(l.parents(model.TCPRouteKind, "shop/first"), l.parents(model.TCPRouteKind, "shop/second"), l.parents(model.UDPRouteKind, "shop/second"))
	if want := fmt.Sprintf("[web %s] [web Accepted=False/Conflicted ResolvedRefs=True/ResolvedRefs] [web %s]", allGood, allGood); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	o, _, _ := l.routeStore(model.TCPRouteKind).GetByKey("shop/first")
	_ = l.routeStore(model.TCPRouteKind).Delete(o)
	if changed := l.sweep(); !slices.Equal(changed, []string{"shop/second"}) || !slices.Equal(l.parents(model.TCPRouteKind, "shop/second"), []string{"web " + allGood}) {
		t.Errorf("%v: %v", changed, l.parents(model.TCPRouteKind, "shop/second"))
	}
}

// TestEntriesOfOtherControllersStay: with fields that are not known here, in their places, up to the bound of the schema; those
// of parents that are gone do not.
func TestEntriesOfOtherControllersStay(t *testing.T) {
	l := newLab(t)
	l.apply("Service", "shop/web", "{clusterIP: 10.96.0.1, ports: [{port: 80}]}")
	spec := `{parentRefs: [{name: gateway}, {group: "", kind: Service, name: web}], rules: [{backendRefs: [{name: web, port: 80}]}]}`
	l.apply(model.TCPRouteKind, "shop/r", spec)
	foreign := `{"conditions":[],"controllerName":"example.com/gateway","new":{"field":1},"parentRef":{"name":"gateway"}}`
	set := func(entries ...string) {
		o, _, _ := l.routeStore(model.TCPRouteKind).GetByKey("shop/r")
		r := o.(*gatewayapi.Route).DeepCopy()
		r.Status.Parents = nil
		for _, e := range entries {
			r.Status.Parents = append(r.Status.Parents, runtime.RawExtension{Raw: []byte(e)})
		}
		_ = l.routeStore(model.TCPRouteKind).Update(r)
	}
	gone := fmt.Sprintf(`{"controllerName":%q,"parentRef":{"group":"","kind":"Service","name":"gone"}}`, Name)
	set(gone, foreign)
	l.sweep()
	if got := l.parents(model.TCPRouteKind, "shop/r"); !slices.Equal(got, []string{foreign, "web " + allGood}) {
		t.Errorf("%v", got)
	}
	set(slices.Repeat([]string{foreign}, maxParents)...)
	if l.sweep(); len(l.parents(model.TCPRouteKind, "shop/r")) != maxParents {
		t.Errorf("%d entries", len(l.parents(model.TCPRouteKind, "shop/r")))
	}
}
