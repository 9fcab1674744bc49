package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

// TestLabelOfAPodMovesItsShare: a plugin weighs endpoints by a label of their Pods, which sluice may read with another role only.
func TestLabelOfAPodMovesItsShare(t *testing.T) {
	s := newScene(t, "labels")
	n1 := s.nodes["n1"]
	s.apply(strings.Replace(web, "name: web}", "name: web, annotations: {sluice.dev/policy: weighed, example.com/mode: fast}}", 1))
	s.pod("a", "web", n1, "")
	s.pod("b", "web", n1, "")
	s.kubectl("label", "pod", "b", "weight=3")
	config := fmt.Sprintf("\nplugins: [{name: weighing, file: %s}]\npolicies: [{name: weighed, plugins: [{name: weighing}]}]\nallow: [{policies: [weighed]}]\n", s.plugins["weighing"])

	// Without the permission the values are absent, and sluice names it. The account is not that of deploy/, whose requests must
	// all be granted.
	role, err := s.clusterRole(s.ctx, accountName)
	s.must(err)
	reader := func(name string) string {
		s.without(name, role, "")
		kubeconfig, err := s.ServiceAccountKubeconfig(s.ctx, accountNamespace, name)
		s.must(err)
		return kubeconfig
	}
	r := s.prepare("n1", config)
	r.monitor()
	r.as = reader("reads-no-pods")
	r.start()
	r.synced()
	vip := s.vip("web", false)
	s.eventually("the missing permission", func() error {
		text := r.explain("web")
		if !strings.Contains(text, "pods       cannot be read") || !strings.Contains(r.log.String(), "ClusterRole needs list and watch of pods") {
			return fmt.Errorf("explain:\n%s\nlog:\n%s", text, r.log)
		}
		return nil
	})
	s.expectShare(n1.client, vip, 0.5, "b")
	open := s.converse(n1.client, vip)

	// With the permission of the kustomize component.
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}})
	r.as = reader("reads-pods")
	r.restartedByKill(nil)
	s.expectShare(n1.client, vip, 0.75, "b")
	s.eventually("the values in explain", func() error {
		if text := r.explain("web"); !strings.Contains(text, "b: mode fast, capacity absent, cpu absent") {
			return fmt.Errorf("explain:\n%s", text)
		}
		return nil
	})
	for _, weight := range []string{"9", "7", "4"} {
		begin := time.Now()
		s.kubectl("label", "--overwrite", "pod", "b", "weight="+weight)
		s.eventually("the new weight", func() error {
			text, err := r.command("explain", "--socket", filepath.Join(r.dir, "sock"), "-n", s.ns, "web", "-o", "json")
			if err == nil && !strings.Contains(text, fmt.Sprintf(`"weight": %s,`, weight)) {
				err = fmt.Errorf("explain:\n%s", text)
			}
			return err
		})
		t.Logf("weight %s is in force within %s of the start of kubectl", weight, time.Since(begin).Round(time.Millisecond))
	}
	s.expectShare(n1.client, vip, 0.8, "b")
	s.kubectl("label", "pod", "b", "weight-")
	s.expectShare(n1.client, vip, 0.5, "b")
	r.saved()
	if wrote := r.restartedByKill(nil); wrote != "0" {
		t.Errorf("the restart wrote %s messages:\n%s", wrote, r.log)
	}
	open.expectAlive()
}
