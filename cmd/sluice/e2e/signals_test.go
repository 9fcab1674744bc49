package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// seen is what the plugin of the folder signals sees of an endpoint. Numbers are -1 if it does not see them.
type seen struct{ Attempts, Answered, Refused, Unanswered, Window, Open, Age int }

// plugins returns a folder with the compiled plugin of a folder.
func (n *node) plugins(name string) string {
	n.Helper()
	dir := os.Getenv("SLUICE_E2E_PLUGINS") // in a test kernel, where nothing can be built
	if dir != "" {
		return dir
	}
	if os.Getenv("SLUICE_BINARY") != "" {
		n.Skip("SLUICE_E2E_PLUGINS is not set")
	}
	return testenv.Plugins(n, "cmd/sluice/e2e/"+name)
}

// runWithSignals starts sluice with that plugin.
func (n *node) runWithSignals(requeueSeconds int) {
	n.Helper()
	dir := n.plugins("signals")
	config := filepath.Join(n.TempDir(), "sluice.yaml")
	text := fmt.Sprintf(`apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
metricsBindAddress: ''
healthzBindAddress: ''
pluginLimits: {compileTime: 5m}
plugins: [{name: signals, file: %s}]
policies: [{name: signals, plugins: [{name: signals, settings: {requeueSeconds: %d}}]}]
defaultPolicy: signals
`, filepath.Join(dir, "signals.wasm"), requeueSeconds)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
	n.run("--config", config)
	n.until("the plugin", func() bool { return strings.Contains(n.log.String(), "loaded plugin") })
}

// loadTimeout bounds the time for which the plugin is compiled: minutes in a test kernel.
const loadTimeout = 5 * time.Minute

// sees returns what the plugin has seen of each Pod when it was called last.
func (n *node) sees() map[string]seen {
	n.Helper()
	out, err := n.sluice("explain", "--socket", n.socket(), "-n", "shop", "web", "-o", "json")
	var x api.Explanation
	if err == nil {
		err = json.Unmarshal([]byte(out), &x)
	}
	if err != nil {
		n.Fatalf("explain: %v\n%s", err, out)
	}
	all := map[string]seen{}
	for _, pool := range x.Pools {
		for _, e := range pool.Endpoints {
			for _, s := range e.Steps {
				v := seen{-1, -1, -1, -1, -1, -1, -1}
				for _, field := range strings.Fields(s.Reason) {
					for name, into := range map[string]*int{
						"attempts": &v.Attempts, "answered": &v.Answered, "refused": &v.Refused, "unanswered": &v.Unanswered,
						"window": &v.Window, "open": &v.Open, "age": &v.Age,
					} {
						if text, ok := strings.CutPrefix(field, name+"="); ok {
							if _, err := fmt.Sscan(text, into); err != nil {
								n.Fatalf("reason %q: %v", s.Reason, err)
							}
						}
					}
				}
				all[strings.TrimSuffix(e.Address, ":8080")] = v
			}
		}
	}
	return all
}

// untilSeen waits until the plugin sees something, and returns how long that took.
func (n *node) untilSeen(what string, ok func(p1, p2 seen) bool) time.Duration {
	n.Helper()
	begin := time.Now()
	var all map[string]seen
	testenv.Eventually(n, what, func() bool {
		all = n.sees()
		return len(all) >= 2 && ok(all["10.244.0.1"], all["10.244.0.2"])
	}, func() string { return fmt.Sprintf("%+v", all) }, n.log.String)
	return time.Since(begin)
}

// connecting makes connections all the time, some at once, whether they succeed or not.
func (n *node) connecting() {
	ctx, stop := context.WithCancel(n.Context())
	done := make(chan struct{})
	const clients = 8
	for range clients {
		go func() {
			for ctx.Err() == nil {
				_, _ = n.client.Ask("tcp", vip, 200*time.Millisecond)
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
			done <- struct{}{}
		}()
	}
	n.Cleanup(func() {
		stop()
		for range clients {
			<-done
		}
	})
}

// filter replaces the packet filter of a Pod.
func (n *node) filter(pod *testnet.Host, rule string) {
	n.Helper()
	text := "add table inet cut; delete table inet cut\n"
	if rule != "" {
		text += "table inet cut { chain input { type filter hook input priority 0;\n" + rule + "\n}\n}\n"
	}
	if out, err := pod.Run(text, "nft", "-f", "-"); err != nil {
		n.Fatalf("nft: %v: %s", err, out)
	}
}

// TestPluginSeesFailingEndpoints stops an endpoint's process, cuts off its host and closes its port by a filter. The engine's
// tests show that it takes at most two readings; this one logs how long it takes.
func TestPluginSeesFailingEndpoints(t *testing.T) {
	n := newNode(t)
	n.endpoints(1, 2, 3)
	p1 := n.pods["p1"]
	n.runWithSignals(0)
	n.untilSeen("at first", func(p1, p2 seen) bool { return p1.Attempts >= 0 && p2.Attempts >= 0 })
	n.connecting()
	testenv.Eventually(t, "100 connections", func() bool { return n.servers["p1"].Accepted() >= 100 })
	before := seen{}
	fails := func(what string, end func(), more func(now seen) bool) {
		t.Helper()
		took := n.untilSeen(what, func(p1, p2 seen) bool {
			if p2.Refused+p2.Unanswered > 0 {
				t.Fatalf("%s: the plugin sees failures of an endpoint without: %+v", what, p2)
			}
			return more(p1) && p1.Window > 0
		})
		t.Logf("%s: seen after %s", what, took.Round(10*time.Millisecond))
		end()
		before = n.settled(what)
	}
	n.servers["p1"].Close()
	fails("its process is stopped", func() { n.serve(p1) }, func(now seen) bool { return now.Refused > before.Refused })
	n.filter(p1, "drop")
	fails("its host is cut off", func() { n.filter(p1, "") }, func(now seen) bool { return now.Unanswered > before.Unanswered })
	n.filter(p1, "tcp dport 8080 reject with icmp port-unreachable")
	fails("its port is closed", func() { n.filter(p1, "") }, func(now seen) bool { return now.Refused > before.Refused })
}

// TestPluginSeesOpenConnections holds connections open and closes them.
func TestPluginSeesOpenConnections(t *testing.T) {
	n := newNode(t)
	n.runWithSignals(1)
	const connections = 20
	var end []func()
	for range connections {
		c, err := n.client.Dial(context.Background(), "tcp", vip)
		if err == nil {
			_, err = testnet.Greeting(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		end = append(end, func() { c.Close() })
	}
	took := n.untilSeen("open", func(p1, p2 seen) bool { return p1.Open > 0 && p2.Open > 0 && p1.Open+p2.Open == connections })
	t.Logf("open: seen after %s", took.Round(10*time.Millisecond))
	for _, f := range end {
		f()
	}
	took = n.untilSeen("closed", func(p1, p2 seen) bool { return p1.Open == 0 && p2.Open == 0 && p1.Age >= 0 })
	t.Logf("closed: seen after %s", took.Round(10*time.Millisecond))
}

// settled waits until no more failures of p1 are seen, and returns what is.
func (n *node) settled(what string) seen {
	n.Helper()
	last, since := n.sees()["10.244.0.1"], time.Now()
	testenv.Eventually(n, what+", and working again: the plugin sees no more failures for 3 s", func() bool {
		now := n.sees()["10.244.0.1"]
		if now.Refused != last.Refused || now.Unanswered > last.Unanswered {
			last, since = now, time.Now()
		}
		return time.Since(since) >= 3*time.Second
	}, func() string { return fmt.Sprintf("%+v", last) })
	return last
}
