package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// kinds installs the kinds of sluice.dev, and registers locality, which tenants may use with some of its settings.
func (s *scene) kinds() {
	s.Helper()
	dir, err := filepath.Abs("../../../deploy/kustomize/crds")
	s.must(err)
	s.kubectl("apply", "--server-side", "-k", dir)
	s.Cleanup(func() { s.afterwards("delete", "-k", dir) })
	s.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "-l", "app.kubernetes.io/name=sluice")
	s.apply(fmt.Sprintf(`
apiVersion: sluice.dev/v1alpha1
kind: ServicePlugin
metadata: {name: spill}
spec:
  source: {type: File, file: {path: %s}}
  use: {namespaces: [%s, %[2]s-lab], settings: [minEndpointsPerZone, hysteresisPercent, hold]}
`, s.plugins["locality"], s.ns))
}

// policy is a ServicePolicy or ClusterServicePolicy with the plugin spill.
func policyObject(kind, name, more, settings string) string {
	return fmt.Sprintf("apiVersion: sluice.dev/v1alpha1\nkind: %s\nmetadata: {name: %s}\nspec: {%splugins: [{name: spill, settings: %s}]}\n", kind, name, more, settings)
}

// TestPoliciesAreObjects: applied at the API server, named by explain, followed by weights and connections, over restarts; by
// layer, port and mode. Of four endpoints one is in this node's zone, and of the cluster's two nodes one: with the policy it has
// half of the connections.
func TestPoliciesAreObjects(t *testing.T) {
	s := newScene(t, "objects")
	s.kinds()
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	s.apply(web)
	s.pod("a", "web", n1, "")
	for _, name := range []string{"b", "c", "d"} {
		s.pod(name, "web", n2, "")
	}
	r := s.run("n1", s.policies(1, ""))
	vip := s.vip("web", false)
	s.expect(n1.client, vip, "a b c d")
	open := s.converse(n1.client, vip)
	stop := s.load(n1.client, vip)
	explains := func(want ...string) {
		t.Helper()
		s.eventually("explain", func() error {
			text := strings.Join(strings.Fields(r.explain("web")), " ")
			for _, w := range want {
				if !strings.Contains(text, w) {
					return fmt.Errorf("explain does not have %q:\n%s", w, r.explain("web"))
				}
			}
			return nil
		})
	}
	kept := func(phase string, want float64) {
		t.Helper()
		s.expectShare(n1.client, vip, want, "a")
		r.saved()
		if wrote := r.restartedByKill(nil); wrote != "0" {
			t.Errorf("%s: the restart wrote %s messages:\n%s\n%s", phase, wrote, r.log, r.explain("web"))
		}
		s.expectShare(n1.client, vip, want, "a")
		open.expectAlive()
	}
	mine := "ServicePolicy/" + s.ns + "/mine"
	target := "targetRefs: [{name: web}], "

	kept("none", 0.25)
	// A policy of another namespace, which may use the plugin, for a Service of the same name.
	s.must(s.AddNamespace(s.ctx, s.ns+"-lab"))
	s.must(s.Apply(s.ctx, strings.Replace(policyObject("ServicePolicy", "mine", target, "{minEndpointsPerZone: 1, hysteresisPercent: 0, hold: 0s}"),
		"{name: mine}", "{name: mine, namespace: "+s.ns+"-lab}", 1)))
	s.Cleanup(func() { s.afterwards("-n", s.ns+"-lab", "delete", "spol", "mine") })
	kept("another namespace's", 0.25) // after the restart, it has been read
	explains("none: the default rules decide")
	s.apply(policyObject("ServicePolicy", "mine", target, "{minEndpointsPerZone: 1, hysteresisPercent: 0, hold: 0s}"))
	kept("applied", 0.5)
	explains("policy "+mine+" (spill)", mine+" (ServicePolicy): applies")

	s.apply(policyObject("ServicePolicy", "mine", target, "{minEndpointsPerZone: 2, hysteresisPercent: 0, hold: 0s}"))
	kept("its settings change: a zone wants two", 0.25)
	s.apply(policyObject("ServicePolicy", "mine", target+"mode: Shadow, ", "{minEndpointsPerZone: 1, hysteresisPercent: 0, hold: 0s}"))
	explains("shadow spill", mine+" (ServicePolicy): shadow")
	kept("a shadow enforces nothing", 0.25)

	s.apply(policyObject("ServicePolicy", "mine", target, "{minEndpointsPerZone: 1, hysteresisPercent: 0, hold: 0s}"))
	kept("enforced again", 0.5)
	s.kubectl("annotate", "service", "web", "sluice.dev/policy=gentle")
	explains(mine+" (ServicePolicy): applies", "gentle (annotation): hidden")
	kept("it goes before the annotation", 0.5)
	s.kubectl("annotate", "service", "web", "sluice.dev/policy-")

	s.apply(policyObject("ClusterServicePolicy", "two", "namespaces: ["+s.ns+"], overrides: true, ", "{minEndpointsPerZone: 2, hysteresisPercent: 0, hold: 0s}"))
	s.Cleanup(func() { s.afterwards("delete", "--ignore-not-found", "cspol", "two") })
	explains("ClusterServicePolicy/two (ClusterServicePolicy, overrides): applies", mine+" (ServicePolicy): hidden")
	kept("overridden", 0.25)
	s.apply(policyObject("ClusterServicePolicy", "two", "namespaces: ["+s.ns+"], ", "{minEndpointsPerZone: 2, hysteresisPercent: 0, hold: 0s}"))
	kept("a default hides nothing", 0.5)
	s.kubectl("delete", "spol", "mine")
	explains("ClusterServicePolicy/two (ClusterServicePolicy): applies")
	kept("the default applies", 0.25)
	s.kubectl("delete", "cspol", "two")
	explains("none: the default rules decide")

	// What a tenant may not have is not in force, and the node says why.
	s.apply(policyObject("ServicePolicy", "mine", target, "{demand: nodes}"))
	s.eventually("the log names the field", func() error {
		if want := "ServicePlugin spill does not let ServicePolicies set it"; !strings.Contains(r.log.String(), want) {
			return fmt.Errorf("no %q:\n%s", want, r.log)
		}
		return nil
	})
	s.apply(policyObject("ServicePolicy", "mine", "targetRefs: [{name: web, sectionName: nosuchport}], ", "{minEndpointsPerZone: 1, hysteresisPercent: 0, hold: 0s}"))
	kept("for another port", 0.25)
	stop()
	if bad := strings.Count(r.log.String(), "level=ERROR"); bad > 0 {
		t.Errorf("errors:\n%s", r.log)
	}
}
