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
	n := newNode(t)
	config := n.configured(fmt.Sprintf(`
pluginLimits: {compileTime: 5m}
plugins: [{name: lifecycle, file: %s}]
policies:
- name: drain
  plugins: [{name: lifecycle, settings: {drain: {stages: [{percent: 50, duration: 10s}], resetAfter: 5s}}}]
defaultPolicy: drain
metricsBindAddress: ""
healthzBindAddress: ""
`, filepath.Join(filepath.Dir(program), "plugins", "lifecycle.wasm")))
	n.run("--config", config, "-v", "1")
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
	n.logs("services=shop/web")
	const reset = "reset connections"
	isReset := func(when string) bool {
		t.Helper()
		done := strings.Contains(n.log.String(), reset)
		// A drain starts at a whole second, rounded down.
		if took := time.Since(begin); done && took < 14*time.Second {
			t.Fatalf("%s: connections are reset %s after the start of a drain of 15 s\n%s", when, took, n.log)
		}
		return done
	}
	for i, by := range []time.Duration{time.Hour, -2 * time.Hour} {
		setWallClock(t, by)
		t.Cleanup(func() { setWallClock(t, -by) })
		name := fmt.Sprint("other-", i)
		n.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {clusterIP: 10.96.0.2%d, clusterIPs: [10.96.0.2%d], ports: [{port: 80}]}
`, name, i, i))
		n.logs("shop/" + name) // planned with the wall clock that was set
		isReset(fmt.Sprint("the wall clock was set by ", by))
	}
	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Fatalf("stop: %v\n%s", err, n.log)
	}
	done := isReset("the wall clock was set")
	setWallClock(t, 3*time.Hour)
	t.Cleanup(func() { setWallClock(t, -3*time.Hour) })
	n.run("--config", config)
	if !done { // if the machine is slow, the first process did it
		n.logs(reset)
	}
	isReset("the wall clock was set between two runs")
}
