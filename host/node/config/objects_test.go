package config

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// put adds an object to those of a source.
func put(t *testing.T, all map[model.ObjectName]any, kind, namespace, name, spec string) {
	t.Helper()
	text := fmt.Sprintf("metadata: {name: %q, namespace: %q}\nspec: %s", name, namespace, spec)
	var o any
	var err error
	switch kind {
	case v1alpha1.ServicePluginKind:
		v := &v1alpha1.ServicePlugin{}
		err, o = yaml.Unmarshal([]byte(text), v), v
	case v1alpha1.ServicePolicyKind:
		v := &v1alpha1.ServicePolicy{}
		err, o = yaml.Unmarshal([]byte(text), v), v
	default:
		v := &v1alpha1.ClusterServicePolicy{}
		err, o = yaml.Unmarshal([]byte(text), v), v
	}
	if err != nil {
		t.Fatal(err)
	}
	all[model.ObjectName{Kind: kind, Name: model.Name{Namespace: namespace, Name: name}}] = o
}

const bundledSpill = "{source: {type: Bundled, bundled: {name: locality}}, use: {namespaces: [shop], settings: [demand]}}"

// TestObjectsAreCheckedWithoutSchemas: what an API server would refuse, a node refuses too, because a folder has no schemas; and
// what only a node can see.
func TestObjectsAreCheckedWithoutSchemas(t *testing.T) {
	const cluster, mine = v1alpha1.ClusterServicePolicyKind, v1alpha1.ServicePolicyKind
	deep := strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)
	for _, c := range []struct{ kind, namespace, spec, want string }{
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill, settings: {demand: cpu}}]}", ""},
		{cluster, "", "{plugins: [{name: spill, settings: {anything: 1}}, {name: ofFile}]}", ""},
		{cluster, "", "{plugins: [{name: spil}]}", `no plugin "spil" (did you mean "spill"?)`},
		{mine, "lab", "{targetRefs: [{name: web}], plugins: [{name: spill}]}", `spec.plugins[0].name: there is no plugin "spill" that namespace lab may use`},
		{mine, "lab", "{targetRefs: [{name: web}], plugins: [{name: spil}]}", `there is no plugin "spil" that namespace lab may use`},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spil}]}", `(did you mean "spill"?)`},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: ofFile}]}", `no plugin "ofFile" that namespace shop may use`},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: admins}]}", `no plugin "admins" that namespace shop may use`},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill, settings: {demant: cpu}}]}", `spec.plugins[0].settings.demant: ServicePlugin spill does not let ServicePolicies set it (did you mean "demand"?)`},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill, settings: {demand: " + strings.Repeat("x", 9000) + "}}]}", "the limit is 8192"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill, settings: {demand: " + deep + "}}]}", "nested deeper"},
		{mine, "shop", "{plugins: [{name: spill}]}", "spec.targetRefs: 0 targets"},
		{mine, "shop", "{targetRefs: [{kind: Gateway, name: web}], plugins: [{name: spill}]}", "spec.targetRefs[0]: not a Service"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: []}", "spec.plugins: 0 plugins"},
		{mine, "shop", "{targetRefs: [{name: web}], trafficHint: LongLived}", ""},
		{cluster, "", "{plugins: [{name: spill}], mode: Shadow, trafficHint: LongLived}", ""},
		{mine, "shop", "{targetRefs: [{name: web}], trafficHint: Short}", `spec.trafficHint: "Short": must be LongLived`},
		{mine, "shop", "{targetRefs: [{name: web}], trafficHint: LongLived, mode: Shadow}", "spec.plugins: required with mode Shadow"},
		{mine, "shop", "{targetRefs: [{name: web}], trafficHint: LongLived, guard: {failedPercent: 2}}", "spec.plugins: required with mode Shadow, guard"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill}, {name: spill}]}", "duplicate"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill}], mode: Maybe}", "spec.mode"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill}], mode: Shadow, guard: {failedPercent: 2}}", "spec.guard"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill}], guard: {failedPercent: 2, window: 1s}}", "spec.guard.window"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill}], panic: {below: 0}}", "spec.panic.below"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill}], rollout: {}}", "spec.rollout"},
		{mine, "shop", "{targetRefs: [{name: web}], plugins: [{name: spill}], rollout: {percent: 0.01}}", "spec.rollout"},
		{cluster, "", "{serviceSelector: {matchLabels: {\"no key\": v}}, plugins: [{name: spill}]}", "spec.serviceSelector.matchLabels[no key]"},
		{cluster, "", "{serviceSelector: {matchExpressions: [{key: a, operator: Like}]}, plugins: [{name: spill}]}", "spec.serviceSelector.matchExpressions[0].operator"},
		{v1alpha1.ServicePluginKind, "", "{source: {type: Image, image: {ref: ghcr.io/a/b:v1}}}", "spec.source.image.ref"},
		{v1alpha1.ServicePluginKind, "", "{source: {type: File, file: {path: near.wasm}}}", "not an absolute path"},
		{v1alpha1.ServicePluginKind, "", "{source: {type: Bundled, bundled: {name: ../../etc/passwd}}}", "spec.source.bundled.name"},
		{v1alpha1.ServicePluginKind, "", "{source: {type: Web}}", "spec.source: type"},
		{v1alpha1.ServicePluginKind, "", "{source: {type: Bundled, bundled: {name: a}}, limits: {memoryMiB: 900}}", "spec.limits.memoryMiB"},
	} {
		file := Default()
		file.Plugins = []Plugin{{Name: "ofFile", File: "/a.wasm"}}
		all := map[model.ObjectName]any{}
		put(t, all, v1alpha1.ServicePluginKind, "", "spill", bundledSpill)
		put(t, all, v1alpha1.ServicePluginKind, "", "admins", "{source: {type: Bundled, bundled: {name: maglev}}}")
		put(t, all, c.kind, c.namespace, "it", c.spec)
		out, problems := new(Objects).WithObjects(file, all)
		switch {
		case c.want == "" && (len(problems) > 0 || len(out.PolicySet().Objects()) != 1):
			t.Errorf("%s: %v", c.spec, problems)
		case c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), c.want) || len(out.PolicySet().Objects()) != 0):
			t.Errorf("%.200s: %v, want %q", c.spec, problems, c.want)
		}
		if len(problems) > 0 && c.namespace == "lab" && strings.Contains(problems[0].Error(), "did you mean") {
			t.Errorf("%s: a namespace is told of a plugin that it may not use: %v", c.spec, problems[0])
		}
	}
}

// TestObjectsChangeOneByOne: an invalid version keeps the one before, a grant that ends does not, and an object that has not
// changed is the same one, so that nothing has to be planned again for it.
func TestObjectsChangeOneByOne(t *testing.T) {
	const mine = v1alpha1.ServicePolicyKind
	good, bad := "{targetRefs: [{name: web}], plugins: [{name: spill}]}", "{targetRefs: [{name: web}], plugins: []}"
	var o Objects
	file, all := Default(), map[model.ObjectName]any{}
	var last *Config
	step := func(what string, policies, changed, problems int, kept bool) {
		t.Helper()
		next, wrong := o.WithObjects(file, all)
		if n := len(next.objectPolicies()); n != policies || len(wrong) != problems {
			t.Errorf("%s: %d policies, problems %v", what, n, wrong)
		}
		if len(wrong) > 0 && wrong[0].Kept != kept {
			t.Errorf("%s: kept %t: %v", what, wrong[0].Kept, wrong[0])
		}
		if last != nil {
			if differ, _ := ChangedPolicies(last, next); len(differ) != changed {
				t.Errorf("%s: %d policies have changed, want %d", what, len(differ), changed)
			}
		}
		if next.Hash() != file.Hash() {
			t.Errorf("%s: the hash of the file has changed", what)
		}
		last = next
	}
	put(t, all, v1alpha1.ServicePluginKind, "", "spill", bundledSpill)
	step("no policies", 0, 0, 0, false)
	put(t, all, mine, "shop", "a", good)
	put(t, all, mine, "shop", "b", good)
	step("two policies", 2, 2, 0, false)
	step("nothing", 2, 0, 0, false)
	put(t, all, mine, "shop", "a", strings.Replace(good, "web", "api", 1))
	step("one changes", 2, 2, 0, false) // the version before and the new one
	put(t, all, mine, "shop", "a", bad)
	step("it is invalid", 2, 0, 1, true)
	put(t, all, mine, "shop", "c", bad)
	step("another one always was", 2, 0, 2, true)
	delete(all, model.ObjectName{Kind: mine, Name: model.Name{Namespace: "shop", Name: "c"}})
	put(t, all, mine, "shop", "a", good)
	step("valid again", 2, 2, 0, false)
	of := func(name string) model.ObjectName {
		return model.ObjectName{Kind: mine, Name: model.Name{Namespace: "shop", Name: name}}
	}
	delete(all, of("a"))
	put(t, all, mine, "shop", "z", good)
	step("one is renamed", 2, 2, 0, false)
	delete(all, of("z"))
	step("it is deleted", 1, 1, 0, false)
	put(t, all, mine, "shop", "z", bad)
	step("it is made again, invalid", 1, 0, 1, false) // nothing of the one before is kept
	put(t, all, mine, "shop", "z", good)
	step("it is made valid", 2, 1, 0, false)
	delete(all, model.ObjectName{Kind: v1alpha1.ServicePluginKind, Name: model.Name{Name: "spill"}})
	put(t, all, v1alpha1.ServicePluginKind, "", "spill2", bundledSpill)
	step("the plugin is renamed", 0, 2, 2, false)
	put(t, all, v1alpha1.ServicePluginKind, "", "spill", bundledSpill)
	step("it is made again", 2, 2, 0, false)
	put(t, all, v1alpha1.ServicePluginKind, "", "spill", strings.Replace(bundledSpill, "shop", "lab", 1))
	step("the grant ends", 0, 2, 2, false)
}
