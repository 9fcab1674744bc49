package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// lab is the caches of a controller, as the API server would fill them.
type lab struct {
	*testing.T
	*caches
	objects config.Objects
	modules *modules
	version int
}

func newLab(t *testing.T) *lab {
	t.Helper()
	c, err := clientsOf(&rest.Config{Host: "https://192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	return &lab{T: t, caches: newCaches(c, func() {}), modules: newModules(nil)}
}

func decode[T any](l *lab, text string) *T {
	l.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		l.Fatalf("%v\n%s", err, text)
	}
	return o
}

// apply writes an object, as an API server does: with a new version, and a new generation unless only the status differs.
func (l *lab) apply(kind, name, spec string) {
	l.Helper()
	l.version++
	namespace, base, namespaced := strings.Cut(name, "/")
	meta := fmt.Sprintf("metadata: {name: %s, generation: %d, resourceVersion: '%d', creationTimestamp: '2026-01-01T00:00:%02dZ'}\n", name, l.version, l.version, l.version%60)
	if namespaced {
		meta = strings.Replace(meta, "name: "+name, "name: "+base+", namespace: "+namespace, 1)
	}
	text := meta + "spec: " + spec
	switch kind {
	case "Service":
		_ = l.services.GetStore().Add(decode[corev1.Service](l, text))
	case model.TCPRouteKind, model.UDPRouteKind:
		o := decode[gatewayapi.Route](l, text)
		if old, ok, _ := l.routeStore(kind).GetByKey(name); ok {
			o.Status = old.(*gatewayapi.Route).Status
		}
		_ = l.routeStore(kind).Add(o)
	case "Node":
		_ = l.nodes.GetStore().Add(decode[metav1.PartialObjectMetadata](l, strings.Replace(meta, "{", "{labels: "+spec+", ", 1)))
	case v1alpha1.ServicePluginKind:
		_ = l.plugins.GetStore().Add(decode[v1alpha1.ServicePlugin](l, text))
	case v1alpha1.ServicePolicyKind:
		_ = l.policies.GetStore().Add(decode[v1alpha1.ServicePolicy](l, text))
	case v1alpha1.ClusterServicePolicyKind:
		_ = l.clusterPolicies.GetStore().Add(decode[v1alpha1.ClusterServicePolicy](l, text))
	default:
		l.Fatal(kind)
	}
}

// report writes the NodeReport of a node that has read everything; plugins has its plugins, as "near" or "near!REASON".
func (l *lab) report(node, plugins string, policies ...v1alpha1.PolicyReport) {
	l.Helper()
	at := fmt.Sprint(l.version)
	r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: node}, Report: v1alpha1.Report{
		Observed: v1alpha1.Observed{ServicePlugins: at, ServicePolicies: at, ClusterServicePolicies: at}, Policies: policies,
	}}
	for p := range strings.FieldsSeq(plugins) {
		name, reason, failed := strings.Cut(p, "!")
		of := v1alpha1.PluginReport{Name: name, Digest: "sha256:" + name}
		if failed {
			of = v1alpha1.PluginReport{Name: name, Reason: reason, Message: "plugin " + name + ": " + reason}
		}
		r.Report.Plugins = append(r.Report.Plugins, of)
	}
	_ = l.reports.GetStore().Add(r)
}

// sweep writes the status of all objects, and returns the names of those that have another one.
func (l *lab) sweep() (changed []string) {
	l.Helper()
	v := newView(l.caches, &l.objects, config.Default(), l.modules)
	for _, w := range v.statuses() {
		if !w.differs {
			continue
		}
		changed = append(changed, w.name.Name.String())
		l.version++
		w.object.(metav1.Object).SetResourceVersion(fmt.Sprint(l.version))
		switch o := w.object.(type) {
		case *gatewayapi.Route:
			_ = l.routeStore(w.name.Kind).Update(o)
		case *v1alpha1.ServicePlugin:
			_ = l.plugins.GetStore().Update(o)
		case *v1alpha1.ServicePolicy:
			_ = l.policies.GetStore().Update(o)
		case *v1alpha1.ClusterServicePolicy:
			_ = l.clusterPolicies.GetStore().Update(o)
		}
	}
	return changed
}

// status returns the status of a policy, with its conditions as "Accepted=True/Accepted".
func (l *lab) status(name string) (s *v1alpha1.PolicyStatus, conditions string) {
	l.Helper()
	if o, ok, _ := l.policies.GetStore().GetByKey(name); ok {
		s = &o.(*v1alpha1.ServicePolicy).Status
	} else if o, ok, _ := l.clusterPolicies.GetStore().GetByKey(name); ok {
		s = &o.(*v1alpha1.ClusterServicePolicy).Status
	} else {
		l.Fatalf("no policy %s", name)
	}
	return s, short(s.Conditions)
}

func short(list []metav1.Condition) string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	return strings.Join(out, " ")
}

func (l *lab) message(list []metav1.Condition, kind string) string {
	l.Helper()
	i := slices.IndexFunc(list, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return ""
	}
	return list[i].Message
}

// resolved makes the module of a bundled plugin known.
func (l *lab) resolved(name string, m *module) {
	l.Helper()
	key, _ := identity(&v1alpha1.ServicePlugin{Spec: v1alpha1.ServicePluginSpec{Source: v1alpha1.PluginSource{Type: v1alpha1.BundledSource, Bundled: &v1alpha1.BundledModule{Name: name}}}})
	l.modules.known[key] = &reading{module: m}
}

// nearModule has a setting.
func nearModule() *module {
	return &module{digest: "sha256:near", manifest: &manifest.Manifest{
		Title: "Near", Release: "1.0.0", Role: "locality", Settings: []manifest.Setting{{Name: "minEndpoints", Type: manifest.Integer}},
	}, settings: []string{"minEndpoints, integer"}}
}

func (l *lab) routeStore(kind string) cache.Store {
	if kind == model.UDPRouteKind {
		return l.udpRoutes.GetStore()
	}
	return l.tcpRoutes.GetStore()
}
