package cluster

import (
	"fmt"
	"strings"
	"testing"
)

// policies returns a configuration with locality and a minimum of endpoints per zone; more is appended. Annotations may choose
// all policies.
func (s *scene) policies(least int, more string) string {
	return fmt.Sprintf(`
plugins:
- {name: locality, file: %s}
- {name: lifecycle, file: %s}
policies:
- name: in-zone
  plugins: [{name: locality, settings: {minEndpointsPerZone: %d, hysteresisPercent: 0, hold: 0s}}]
- name: gentle
  plugins: [{name: lifecycle, settings: {drain: {stages: [{percent: 50, duration: 10m}]}}}]
allow: [{policies: [in-zone, gentle]}]
%s`, s.plugins["locality"], s.plugins["lifecycle"], least, more)
}

// TestPoliciesAreAttachedChangedAndRemoved: by annotation and by the configuration's bindings, under load.
// Of four endpoints one is in this node's zone, and of the cluster's two nodes one: it keeps half of its connections.
func TestPoliciesAreAttachedChangedAndRemoved(t *testing.T) {
	s := newScene(t, "policy")
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
	kept("none", 0.25)
	s.kubectl("annotate", "service", "web", "sluice.dev/policy=in-zone")
	kept("attached by annotation", 0.5)
	if explanation := r.explain("web"); !strings.Contains(explanation, "locality") {
		t.Errorf("explain does not name the plugin:\n%s", explanation)
	}
	r.configure(s.policies(2, ""))
	kept("changed: a zone wants two", 0.25)
	r.configure(s.policies(1, ""))
	kept("changed back", 0.5)
	s.kubectl("annotate", "service", "web", "sluice.dev/policy-")
	kept("annotation removed", 0.25)

	bound := "bindings:\n- {namespaces: [" + s.ns + "], selector: {matchLabels: {traffic: in-zone}}, policy: in-zone}\n"
	s.kubectl("label", "service", "web", "traffic=in-zone")
	r.configure(s.policies(1, bound))
	kept("bound by the configuration", 0.5)
	s.kubectl("annotate", "service", "web", "sluice.dev/policy=gentle")
	kept("the annotation goes before the binding", 0.25)
	s.kubectl("annotate", "service", "web", "sluice.dev/policy-")
	kept("bound again", 0.5)
	s.kubectl("label", "service", "web", "traffic-")
	kept("the label is gone", 0.25)
	stop()
	if bad := strings.Count(r.log.String(), "level=ERROR"); bad > 0 {
		t.Errorf("errors:\n%s", r.log)
	}
}

// TestZoneChangesWithAPolicy: locality sees the current zones of this Node and of the others.
func TestZoneChangesWithAPolicy(t *testing.T) {
	s := newScene(t, "spill")
	n1 := s.nodes["n1"]
	inA, inB := s.others() // with n1 and n2: two nodes per zone
	s.apply(strings.Replace(web, "name: web}", "name: web, annotations: {sluice.dev/policy: in-zone}}", 1))
	s.pod("a", "web", n1, inA)
	for _, name := range []string{"b", "c", "d"} {
		s.pod(name, "web", n1, inB)
	}
	r := s.run("n1", s.policies(1, ""))
	vip := s.vip("web", false)
	s.expectShare(n1.client, vip, 0.5, "a") // ¼ of the endpoints for ½ of the demand
	s.Cleanup(func() {
		s.afterwards("label", "--overwrite", "node", "n1", "topology.kubernetes.io/zone=a")
		s.afterwards("label", "--overwrite", "node", "n2", "topology.kubernetes.io/zone=b")
	})
	s.zone("n1", "b")
	s.expectShare(n1.client, vip, 0, "a") // ¾ for ¾
	r.saved()
	if wrote := r.restartedByKill(nil); wrote != "0" {
		t.Errorf("the restart wrote %s messages:\n%s", wrote, r.log)
	}
	s.zone("n1", "a")
	s.expectShare(n1.client, vip, 0.5, "a")
	// Another Node changes: the demand of zone a is three quarters of all now, and its endpoints the fourth part.
	s.zone("n2", "a")
	s.expectShare(n1.client, vip, 1.0/3, "a")
}

// TestDrainContinuesAfterRestart: a terminating Pod keeps its stage when sluice is killed.
func TestDrainContinuesAfterRestart(t *testing.T) {
	s := newScene(t, "drain")
	n1 := s.nodes["n1"]
	s.apply(strings.Replace(web, "name: web}", "name: web, annotations: {sluice.dev/policy: gentle}}", 1))
	s.pod("a", "web", n1, "")
	b := s.pod("b", "web", n1, "")
	r := s.run("n1", s.policies(1, ""))
	vip := s.vip("web", false)
	s.expectShare(n1.client, vip, 0.5, "b")
	open := s.converse(n1.client, vip)
	b.terminate()
	s.expectShare(n1.client, vip, 1.0/3, "b")
	r.saved()
	if wrote := r.restartedByKill(nil); wrote != "0" {
		t.Errorf("the restart wrote %s messages:\n%s", wrote, r.log)
	}
	s.expectShare(n1.client, vip, 1.0/3, "b")
	s.eventually("explain names the stage", func() error {
		if explanation := r.explain("web"); !strings.Contains(explanation, "stage 1 of 1, 50 %") {
			return fmt.Errorf("explain:\n%s", explanation)
		}
		return nil
	})
	b.remove()
	s.expect(n1.client, vip, "a")
	open.expectAlive()
}
