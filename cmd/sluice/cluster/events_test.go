package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestEventsReachTheAPIServer: for the start, and for Services whose annotation chooses no policy.
func TestEventsReachTheAPIServer(t *testing.T) {
	s := newScene(t, "events")
	s.apply(strings.Replace(web, "name: web}", "name: web, annotations: {sluice.dev/policy: none-such}}", 1))
	r := s.run("n1", s.policies(1, ""))
	expectEvent := func(what, namespace, about, want string) {
		t.Helper()
		s.eventually(what, func() error {
			out, err := s.Kubectl(s.ctx, "", "events", "-n", namespace, "--for", about)
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("kubectl events --for %s:\n%s", about, out)
			}
			return err
		})
	}
	expectEvent("the start", "default", "node/n1", "Starting")
	expectEvent("a policy that does not exist", s.ns, "service/web", "PolicyNotFound")
	expectEvent("what may be chosen", s.ns, "service/web", "allowed: gentle, in-zone")
	r.configure(s.policies(1, "nonsense: 1\n"))
	expectEvent("a configuration that is not in force", "default", "node/n1", "ConfigurationRejected")
	r.configure(s.policies(1, "masqueradeAll: false\n"))
	expectEvent("its end", "default", "node/n1", "ConfigurationApplied")
	s.kubectl("annotate", "--overwrite", "service", "web", "sluice.dev/policy=in-zone")
	r.configure(strings.Replace(s.policies(1, ""), "policies: [in-zone, gentle]", "policies: [gentle]", 1))
	expectEvent("a policy that it may not choose", s.ns, "service/web", "PolicyNotAllowed")
	none := filepath.Join(r.dir, "none.wasm")
	r.configure(strings.Replace(s.policies(1, ""), s.plugins["locality"], none, 1))
	expectEvent("a plugin that cannot be loaded", "default", "node/n1", "PluginLoadFailed")
	expectEvent("its file", "default", "node/n1", none)
}

// TestPlanReadsTheCluster: `sluice plan` prints what the sluice of the node has programmed, and `sluice simulate` computes all
// nodes.
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
	out, err = r.command("simulate", "--kubeconfig", r.as, "--config", r.config, "--against", "none", "-o", "json")
	var simulated struct {
		Nodes int
		Runs  []struct{ Services []struct{ Service string } }
	}
	if i := strings.Index(out, "{\n"); err == nil && i >= 0 {
		err = json.Unmarshal([]byte(out[i:]), &simulated)
	}
	if err != nil || simulated.Nodes < 2 || len(simulated.Runs) != 2 || !strings.Contains(out, `"`+s.ns+`/web"`) {
		t.Errorf("simulate: %v\n%s", err, out)
	}
	if out, err := r.command("plan", "--kubeconfig", filepath.Join(r.dir, "none"), "--node", "n1"); err == nil || !strings.Contains(out, "none") {
		t.Errorf("no kubeconfig: %v\n%s", err, out)
	}
}

var latency = regexp.MustCompile(`(?m)^kubeproxy_network_programming_duration_seconds_(count|sum)(?:\{[^}]*\})? (\S+)$`)

// TestProgrammingLatencyIsMeasured: from the controller's timestamp in the slice to the kernel's acknowledgement. Slices
// from before the start do not count.
func TestProgrammingLatencyIsMeasured(t *testing.T) {
	s := newScene(t, "latency")
	n1 := s.nodes["n1"]
	s.apply(web)
	s.pod("a", "web", n1, "")
	s.eventually("the slice has a", func() error { return s.inSlice("web", "a") })
	r := s.run("n1", "")
	vip := s.vip("web", false)
	s.expect(n1.client, vip, "a")
	measured := func() (count, sum float64) {
		for _, m := range latency.FindAllStringSubmatch(r.metrics(), -1) {
			v, err := strconv.ParseFloat(m[2], 64)
			s.must(err)
			if m[1] == "count" {
				count += v
			} else {
				sum += v
			}
		}
		return count, sum
	}
	s.eventually("no change that was there before is measured", func() error {
		if text := r.metrics(); !strings.Contains(text, "kubeproxy_network_programming_duration_seconds_count") {
			return errors.New("there is no such metric")
		}
		if count, _ := measured(); count != 0 {
			return fmt.Errorf("%v are", count)
		}
		return nil
	})
	time.Sleep(1100 * time.Millisecond) // time passes: readiness has a resolution of one second: this Pod must become ready after the start
	s.pod("b", "web", n1, "")
	s.expect(n1.client, vip, "a b")
	s.eventually("measured", func() error {
		if count, sum := measured(); count == 0 || sum < 0 || sum > count*timeout.Seconds() {
			return fmt.Errorf("%v changes in %v s", count, sum)
		}
		return nil
	})
	var served string
	s.eventually("metrics", func() error {
		if served = r.metrics(); served == "" {
			return errors.New("no answer")
		}
		return nil
	})
	checkKubeProxyDashboards(t, served)
}
