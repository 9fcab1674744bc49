package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// setWallClock changes the wall clock of a test kernel, and of no other.
func setWallClock(t *testing.T, by time.Duration) {
	t.Helper()
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || os.Getenv("SLUICE_VM") == "" || !strings.Contains(string(cpu), "User Mode Linux") {
		t.Fatalf("this is not a test kernel, but the host: its clock is not for tests (%v)", err)
	}
	now := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	if err := unix.Settimeofday(&now); err != nil {
		t.Fatal(err)
	}
}

// TestSettingTheWallClockMovesNoDrain, neither while sluice runs nor between two runs.
func TestSettingTheWallClockMovesNoDrain(t *testing.T) {
	if os.Getenv("SLUICE_VM") == "" {
		t.Skip("sets the clock of the machine: test kernels only (host/lab/vm)")
	}
	const limit = 20 * time.Second // from the start of the drain to the reset
	for name, by := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			config := n.configured(fmt.Sprintf(`
plugins: [{name: staged-drain, file: %s}]
policies:
- name: drain
  plugins: [{name: staged-drain, settings: {stages: [{weight: 50, seconds: 10}], resetAfterSeconds: 10}}]
defaultPolicy: drain
metricsBindAddress: ""
healthzBindAddress: ""
`, filepath.Join(filepath.Dir(program), "plugins", "staged-drain.wasm")))
			n.run("--config", config)
			n.logs("loaded plugin")
			n.expect("running", "p1 p2")
			begin := time.Now() // with a monotonic reading
			n.write("slice.yaml", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.0.2], conditions: {ready: true}}
`)
			n.logs("synced services")
			setWallClock(t, by)
			t.Cleanup(func() { setWallClock(t, -by) })
			n.explains("10.244.0.1:8080", "draining: stage 1 of 1, 50 %")
			if err := n.stop(syscall.SIGTERM); err != nil {
				t.Fatalf("stop: %v\n%s", err, n.log)
			}
			setWallClock(t, -2*by)
			t.Cleanup(func() { setWallClock(t, 2*by) })
			n.run("--config", config)
			n.logs("reset connections")
			// Drains start at a whole second, rounded down.
			if took := time.Since(begin); took < limit-time.Second {
				t.Errorf("reset after %s, not %s\n%s", took, limit, n.log)
			}
			n.explains("10.244.0.1:8080", "draining: no new connections")
		})
	}
}

// explains waits until explain says something about an endpoint.
func (n *node) explains(endpoint, want string) {
	n.Helper()
	var out string
	var err error
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		out, err = n.sluice("explain", "--socket", n.socket(), "-n", "shop", "web")
		for line := range strings.Lines(out) {
			if err == nil && strings.Contains(line, endpoint) && strings.Contains(line, want) {
				return
			}
		}
	}
	n.Fatalf("explain does not say %q about %s: %v\n%s\n%s", want, endpoint, err, out, n.log)
}
