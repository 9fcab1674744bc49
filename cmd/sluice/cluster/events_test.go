package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestEventsTellOperators: of the start, and of a Service whose policy there is not.
func TestEventsTellOperators(t *testing.T) {
	s := newScene(t, "events")
	s.apply(strings.Replace(web, "name: web}", "name: web, annotations: {sluice.dev/policy: none-such}}", 1))
	s.run("n1", s.policies(1, ""))
	told := func(what, namespace, about, want string) {
		t.Helper()
		s.eventually(what, func() error {
			out, err := s.Kubectl(s.ctx, "", "events", "-n", namespace, "--for", about)
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("kubectl events --for %s:\n%s", about, out)
			}
			return err
		})
	}
	told("the start", "default", "node/n1", "Starting")
	told("a policy that is not there", s.ns, "service/web", "none-such")
}

// TestPlanReadsTheCluster: what `sluice plan` says of a cluster that it reads once is what the node's sluice does.
func TestPlanReadsTheCluster(t *testing.T) {
	s := newScene(t, "plan")
	s.apply(web)
	s.pod("a", "web", s.nodes["n1"], "")
	r := s.run("n1", s.policies(1, ""))
	vip := s.vip("web", false)
	s.expect(s.nodes["n1"].client, vip, "a")
	out, err := r.command("plan", "--kubeconfig", r.as, "--node", "n1", "--config", r.config)
	if err != nil || !strings.Contains(out, vip.Addr().String()) {
		t.Errorf("plan: %v\n%s", err, out)
	}
	out, err = r.command("explain", "--kubeconfig", r.as, "--node", "n1", "--config", r.config, "-n", s.ns, "web")
	if err != nil || !strings.Contains(out, "10.244.1.") {
		t.Errorf("explain: %v\n%s", err, out)
	}
	if out, err := r.command("plan", "--kubeconfig", filepath.Join(r.dir, "none"), "--node", "n1"); err == nil || !strings.Contains(out, "none") {
		t.Errorf("no kubeconfig: %v\n%s", err, out)
	}
}
