package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// objectSet has a policy of the file in each layer that the file has, and objects.
func objectSet(list ...*Object) *Set {
	s := &Set{Policies: map[string]*Policy{}, Default: "default", Allow: []Allow{{Policies: []string{"annotated"}}},
		Bindings: []Binding{{Namespaces: []string{"shop"}, Selector: Selector{{Key: "bound", Op: Exists}}, Policy: "bound"}}}
	for _, name := range []string{"default", "bound", "annotated"} {
		s.Policies[name] = &Policy{Name: name, Steps: []Step{{Plugin: name}}}
	}
	s.SetObjects(list)
	s.SetNode(Node{Name: "n1", Labels: map[string]string{"zone": "a"}, Known: true})
	return s
}

// anObject returns an object of a namespace, "" for a ClusterServicePolicy, for targets of the form SERVICE or SERVICE:PORT.
func anObject(namespace, name string, created int64, targets ...string) *Object {
	o := &Object{Name: model.Name{Namespace: namespace, Name: name}, Created: created}
	for _, t := range targets {
		service, port, _ := strings.Cut(t, ":")
		o.Targets = append(o.Targets, Target{service, port})
	}
	o.Policy = &Policy{Name: ObjectPolicyName(o.Name), FromObject: true, Steps: []Step{{Plugin: name}}}
	return o
}

func with(o *Object, change func(*Object)) *Object {
	change(o)
	return o
}

func TestPrecedenceOfObjectsByPort(t *testing.T) {
	const cluster, mine = "ClusterServicePolicy/", "ServicePolicy/shop/"
	overrides := func(o *Object) { o.Overrides = true }
	shadow := func(o *Object) { o.Shadow = true }
	elsewhere := func(o *Object) { o.Nodes.Selector = Selector{{Key: "zone", Op: In, Values: []string{"b"}}} }
	guarded := func(o *Object) { o.Policy.Guard.FailedPercent = 2 }
	bound := map[string]string{"bound": ""}
	for _, c := range []struct {
		name      string
		objects   []*Object
		labels    map[string]string
		annotated string
		suspended string
		http, dns string // the policies of the ports; "+x" is a shadow with the chain of x
	}{
		{name: "no objects", http: "default", dns: "default"},
		{name: "default of the cluster", objects: []*Object{anObject("", "c", 1)}, http: cluster + "c", dns: cluster + "c"},
		{name: "a binding before a default of the cluster", objects: []*Object{anObject("", "c", 1)}, labels: bound, http: "bound", dns: "bound"},
		{name: "a ServicePolicy before annotation and binding", objects: []*Object{anObject("shop", "p", 1, "web")}, labels: bound, annotated: "annotated", http: mine + "p", dns: mine + "p"},
		{name: "overrides before a ServicePolicy", objects: []*Object{anObject("shop", "p", 1, "web"), with(anObject("", "c", 2), overrides)}, http: cluster + "c", dns: cluster + "c"},
		{name: "a port before its Service, also if it is newer", objects: []*Object{anObject("shop", "p", 1, "web"), anObject("shop", "q", 2, "web:http")}, http: mine + "q", dns: mine + "p"},
		{name: "one object for the Service and a port", objects: []*Object{anObject("shop", "p", 1, "web", "web:http")}, http: mine + "p", dns: mine + "p"},
		{name: "only a port", objects: []*Object{anObject("shop", "p", 1, "web:dns")}, http: "default", dns: mine + "p"},
		{name: "the older one", objects: []*Object{anObject("shop", "a", 2, "web"), anObject("shop", "b", 1, "web")}, http: mine + "b", dns: mine + "b"},
		{name: "of the same age, by name", objects: []*Object{anObject("shop", "b", 1, "web"), anObject("shop", "a", 1, "web")}, http: mine + "a", dns: mine + "a"},
		{name: "another namespace", objects: []*Object{anObject("lab", "p", 1, "web")}, http: "default", dns: "default"},
		{name: "another Service", objects: []*Object{anObject("shop", "p", 1, "api")}, http: "default", dns: "default"},
		{name: "another namespace of a ClusterServicePolicy", objects: []*Object{with(anObject("", "c", 1), func(o *Object) { o.Namespaces = []string{"lab"} })}, http: "default", dns: "default"},
		{name: "labels of a ClusterServicePolicy", objects: []*Object{with(anObject("", "c", 1), func(o *Object) { o.Selector = Selector{{Key: "x", Op: Exists}} })}, http: "default", dns: "default"},
		{name: "not on this node", objects: []*Object{with(anObject("shop", "p", 1, "web"), elsewhere), anObject("shop", "q", 2, "web")}, http: mine + "q", dns: mine + "q"},
		{name: "fallen back", objects: []*Object{with(anObject("shop", "p", 1, "web"), guarded), anObject("", "c", 2)}, suspended: mine + "p", http: cluster + "c", dns: cluster + "c"},
		{name: "a shadow of what applies", objects: []*Object{with(anObject("shop", "p", 1, "web:http"), shadow)}, http: "default+p", dns: "default"},
		{name: "a shadow of another object", objects: []*Object{with(anObject("", "c", 1), overrides), with(anObject("shop", "p", 1, "web"), shadow)}, http: cluster + "c", dns: cluster + "c"},
		{name: "the first shadow", objects: []*Object{with(anObject("shop", "p", 1, "web"), shadow), with(anObject("shop", "q", 2, "web"), shadow)}, http: "default+p", dns: "default+p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := objectSet(c.objects...)
			s.Suspend(c.suspended, true)
			svc := &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}, Labels: c.labels, Policy: c.annotated}
			for port, want := range map[string]string{"http": c.http, "dns": c.dns} {
				p, err := s.For(svc, port, "")
				got := p.Name
				for _, step := range p.Shadow {
					name, _ := CutShadow(step.Plugin)
					got += "+" + name
				}
				if got != want || err != nil {
					t.Errorf("port %s: %s %v, want %s", port, got, err, want)
				}
				if again, _ := s.For(svc, port, ""); again != p {
					t.Errorf("port %s: another policy the second time", port)
				}
				applies := 0
				for _, candidate := range s.Candidates(svc, port, "") {
					if candidate.State == Applies {
						applies++
						if candidate.Policy.Name != p.Name {
							t.Errorf("port %s: %s applies, %s is in force", port, candidate.Policy.Name, p.Name)
						}
					}
				}
				if applies != 1 {
					t.Errorf("port %s: %d candidates apply", port, applies)
				}
			}
		})
	}
}

// TestCandidatesNameWhatIsHidden: in the order of precedence, each with its state.
func TestCandidatesNameWhatIsHidden(t *testing.T) {
	s := objectSet(
		with(anObject("", "strict", 1), func(o *Object) {
			o.Overrides = true
			o.Nodes.Selector = Selector{{Key: "zone", Op: In, Values: []string{"b"}}}
		}),
		with(anObject("shop", "try", 1, "web:http"), func(o *Object) { o.Shadow = true }),
		anObject("shop", "mine", 2, "web"), anObject("shop", "late", 3, "web"), anObject("", "all", 4),
	)
	svc := &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}, Labels: map[string]string{"bound": ""}}
	var got []string
	for _, c := range s.Candidates(svc, "http", "") {
		got = append(got, fmt.Sprintf("%s: %s: %s%s", c.Layer, c.Policy.Name, c.State, c.Why))
	}
	want := []string{
		"ClusterServicePolicy, overrides: ClusterServicePolicy/strict: not on this nodeits labels do not match",
		"ServicePolicy of the port: ServicePolicy/shop/try: shadow",
		"ServicePolicy: ServicePolicy/shop/mine: applies",
		"ServicePolicy: ServicePolicy/shop/late: hidden",
		"binding: bound: hidden",
		"ClusterServicePolicy: ClusterServicePolicy/all: hidden",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRevisionOfAnObjectCoversSettings: they are marked as a tenant's, and those of a Service are not part of a revision.
func TestRevisionOfAnObjectCoversSettings(t *testing.T) {
	revision := func(settings string, object bool) string {
		return Revision(&Policy{Name: "p", FromObject: object, Steps: []Step{{Plugin: "a", Settings: settings, Own: true}}}, sameCode("1"))
	}
	if revision(`{"x":1}`, true) == revision(`{"x":2}`, true) {
		t.Error("settings of an object are not in the revision")
	}
	if revision(`{"x":1}`, false) != revision(`{"x":2}`, false) {
		t.Error("settings of a Service are in the revision")
	}
}
