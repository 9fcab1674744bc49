package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// guardedConfig is a configuration with a guarded policy that sends connections to endpoints that terminate, or to none of them.
func guardedConfig(plugins string, terminating bool) string {
	return fmt.Sprintf(`apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
metricsBindAddress: 127.0.0.1:10249
healthzBindAddress: ''
pluginLimits: {compileTime: 5m}
plugins: [{name: prefer, file: %s}]
policies:
- {name: trial, guard: {failedPercent: 2, window: 5s}, plugins: [{name: prefer, settings: {terminating: %t}}]}
bindings: [{namespaces: [shop], policy: trial, nodes: {percent: 100}}]
`, filepath.Join(plugins, "prefer.wasm"), terminating)
}

// metrics returns the node's metrics, "" if sluice does not answer.
func (n *node) metrics() string {
	n.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.lab.Node.Dial(ctx, network, netip.MustParseAddrPort("127.0.0.1:10249"))
	}}}
	r, err := client.Get("http://127.0.0.1:10249/metrics")
	if err != nil {
		return "" // not listening yet
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		n.Fatal(err)
	}
	return string(text)
}

// metric returns the sum of the samples of a metric whose labels contain all texts, -1 if there is none.
func (n *node) metric(name string, labels ...string) float64 {
	n.Helper()
	sum, found := 0.0, false
samples:
	for _, m := range regexp.MustCompile(`(?m)^`+name+`\{(.*)\} (\S+)$`).FindAllStringSubmatch(n.metrics(), -1) {
		for _, l := range labels {
			if !strings.Contains(m[1], l) {
				continue samples
			}
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			n.Fatal(err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return -1
	}
	return sum
}

// until waits for a condition.
func (n *node) until(what string, ok func() bool) time.Duration {
	n.Helper()
	begin := time.Now()
	testenv.Within(n, loadTimeout, what, ok, n.log.String)
	return time.Since(begin)
}

// guardIs reports whether the guard of the policy is in a state.
func (n *node) guardIs(state string) bool {
	return n.metric("sluice_policy_guard", `policy="trial"`, `state="`+state+`"`) == 1
}

// TestGuardFallsBackFromAPolicyThatPrefersDeadEndpoints has the policy in force after the baseline, and the node falls back from
// it. That survives a restart, and ends when the policy is repaired.
func TestGuardFallsBackFromAPolicyThatPrefersDeadEndpoints(t *testing.T) {
	n := newNode(t)
	plugins := n.plugins("prefer")
	n.servers["p3"].Close() // its process has stopped, and its Pod terminates
	n.write("slice.yaml", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: true}}
- {addresses: [10.244.0.2], conditions: {ready: true}}
- {addresses: [10.244.0.3], conditions: {ready: false, serving: true, terminating: true}}
`)
	config := filepath.Join(t.TempDir(), "sluice.yaml")
	write := func(terminating bool) {
		t.Helper()
		if err := os.WriteFile(config+".new", []byte(guardedConfig(plugins, terminating)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(config+".new", config); err != nil {
			t.Fatal(err)
		}
	}
	write(true)
	n.run("--config", config)
	n.expect("before the policy is in force", "p1 p2")
	n.connecting()
	n.until("the baseline", func() bool { return strings.Contains(n.log.String(), "policy trial is in force") })
	took := n.until("the fall back", func() bool { return strings.Contains(n.log.String(), "policy trial has fallen back") })
	t.Logf("in force for %s", took.Round(10*time.Millisecond))

	n.until("the metric", func() bool { return n.guardIs("fallen_back") })
	n.expect("after it has fallen back", "p1 p2")
	failed, baseline := n.metric("sluice_policy_connections_total", `policy="trial"`, `outcome="refused"`), n.metric("sluice_policy_connections_total", `policy=""`, `outcome="answered"`)
	if failed < 10 || baseline < 100 {
		t.Errorf("%v refused under the policy, %v answered before it", failed, baseline)
	}
	if n.guardIs("in_force") || n.guardIs("baseline") || n.guardIs("blind") {
		t.Error("the guard has more than one state")
	}
	fallenBack := func(what string) {
		t.Helper()
		out, err := n.sluice("explain", "--socket", n.socket(), "-n", "shop", "web")
		if err != nil || !strings.Contains(out, "policy trial has fallen back") || !strings.Contains(out, "policy     none") {
			t.Fatalf("%s: explain: %v\n%s", what, err, out)
		}
	}
	fallenBack("at once")

	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Fatalf("%v\n%s", err, n.log)
	}
	n.run("--config", config)
	n.until("the plugin", func() bool { return strings.Contains(n.log.String(), "loaded plugin") })
	n.until("the metric after a restart", func() bool { return n.guardIs("fallen_back") })
	n.expect("after a restart", "p1 p2")
	fallenBack("after a restart")
	if failed := n.metric("sluice_policy_connections_total", `policy="trial"`); failed > 0 {
		t.Errorf("%v connections under the policy after a restart", failed)
	}

	write(false)
	n.until("the baseline of the repaired policy", func() bool { return n.guardIs("in_force") })
	n.until("connections under the repaired policy", func() bool {
		return n.metric("sluice_policy_connections_total", `policy="trial"`, `outcome="answered"`) > 1000
	})
	if !n.guardIs("in_force") || n.metric("sluice_policy_connections_total", `policy="trial"`, `outcome="refused"`) > 0 {
		t.Errorf("the repaired policy does not stay in force:\n%s", n.log)
	}
	n.expect("the repaired policy", "p1 p2")

	if os.Getenv("SLUICE_BINARY") != "" {
		return // test kernels need not repeat it
	}
	var served string
	n.until("all metrics", func() bool { served = n.metrics(); return served != "" })
	t.Run("queries", func(t *testing.T) { checkQueries(t, served) })
}
