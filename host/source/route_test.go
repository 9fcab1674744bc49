package source

import (
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/core/model"
)

func routeOf(t *testing.T, kind, spec string) (*model.Route, string) {
	t.Helper()
	var o gatewayapi.Route
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: r, namespace: shop, creationTimestamp: '1970-01-01T00:00:07Z'}\nspec: "+spec), &o); err != nil {
		t.Fatal(err)
	}
	r, problems := Route(kind, &o)
	var text []string
	for _, p := range problems {
		text = append(text, p.Error())
	}
	return r, strings.Join(text, "\n")
}

// TestRoute: what is read of routes, what of them is for others, and what exceeds the bounds.
func TestRoute(t *testing.T) {
	const parent = `parentRefs: [{group: "", kind: Service, name: web}]`
	r, problems := routeOf(t, model.UDPRouteKind, `{parentRefs: [{name: gateway}, {group: "", kind: Service, name: web, sectionName: dns, port: 53},
  {group: "", kind: Service, name: web, namespace: other}, {group: "", kind: Service, name: web, namespace: shop}],
  rules: [{name: all, backendRefs: [{name: a, port: 53}, {name: b, port: 53, weight: 0}, {name: c, weight: 2, group: x, kind: Y},
  {name: d, port: 53, namespace: other}, {name: e}]}]}`)
	want := &model.Route{
		Name: model.ObjectName{Kind: "UDPRoute", Name: model.Name{Namespace: "shop", Name: "r"}}, Created: 7,
		Parents: []model.RouteParent{{Service: "web", Section: "dns", Port: 53}, {Service: "web"}},
		Backends: []model.RouteBackend{
			{Service: "a", Port: 53, Weight: 1}, {Service: "b", Port: 53},
			{Service: "c", Weight: 2, Reason: model.RouteInvalidKind, Why: "only Services can be backends"},
			{Service: "other/d", Port: 53, Weight: 1, Reason: model.RouteRefNotPermitted, Why: "a Service of another namespace, which NodePorts and load balancers would make reachable from outside"},
			{Service: "e", Weight: 1, Reason: model.RouteUnsupportedValue, Why: "no port"},
		},
	}
	if problems != "" || !reflect.DeepEqual(r, want) || r.Protocol() != model.UDP {
		t.Errorf("%s\n%+v\nwant\n%+v", problems, r, want)
	}
	for _, c := range []struct{ spec, problem string }{
		{"{parentRefs: [{name: gateway}]}", ""},
		{"{parentRefs: [{kind: Service, name: web}]}", "TCPRoute shop/r: spec.parentRefs[0].group: Services are in group"},
		{`{parentRefs: [{group: "", kind: Service, name: web, port: 70000}]}`, "TCPRoute shop/r: spec.parentRefs[0].port: 70000 is not between 1 and 65535"},
		{`{parentRefs: [` + strings.Repeat(`{group: "", kind: Service, name: web},`, 33) + `]}`, "TCPRoute shop/r: spec.parentRefs: 33 parents, more than 32"},
		{"{" + parent + ", rules: [{backendRefs: [" + strings.Repeat("{name: a, port: 1},", 17) + "]}]}", "TCPRoute shop/r: spec.rules[0].backendRefs: 17 backends, more than 16"},
	} {
		if r, problems := routeOf(t, model.TCPRouteKind, c.spec); r != nil || !strings.HasPrefix(problems, c.problem) || (c.problem == "") != (problems == "") {
			t.Errorf("%.100s: %+v, %q, want none and %q", c.spec, r, problems, c.problem)
		}
	}
	r, problems = routeOf(t, model.TCPRouteKind, "{"+parent+", rules: [{backendRefs: [{name: a, port: 1, weight: -1}, {name: b, port: 1, weight: 1000001}]}, {backendRefs: []}]}")
	if r == nil || len(r.Backends) != 2 || r.Backends[0].Weight != 0 || r.Backends[1].Weight != model.MaxRouteWeight || strings.Count(problems, "\n") != 2 {
		t.Errorf("%+v\n%s", r, problems)
	}
	if r, problems := routeOf(t, model.TCPRouteKind, "{"+parent+"}"); r == nil || len(r.Backends) != 0 || problems != "" {
		t.Errorf("without rules: %+v, %s", r, problems)
	}
}
