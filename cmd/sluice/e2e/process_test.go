package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pluginProcesses returns the ids of the processes in which sluice runs plugins.
func (n *node) pluginProcesses() (pids []int) {
	n.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		n.Fatal(err)
	}
	for _, dir := range dirs {
		command, _ := os.ReadFile(dir + "/cmdline") // it may have ended
		status, _ := os.ReadFile(dir + "/status")
		if strings.HasPrefix(string(command), "sluice\x00plugin-process\x00") && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", n.process.PID())) {
			var pid int
			if _, err := fmt.Sscanf(dir, "/proc/%d", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestPluginsKilledAtRandomTimesFailNoConnection kills the processes of plugins while endpoints of their Service change. p2 is
// always an endpoint. Plugins decide again after the last kill. SLUICE_KILL_SECONDS is how long it lasts.
func TestPluginsKilledAtRandomTimesFailNoConnection(t *testing.T) {
	n := newNode(t)
	plugins := n.plugins("prefer")
	n.run("--config", n.configured(fmt.Sprintf(`
metricsBindAddress: ''
healthzBindAddress: ''
pluginLimits: {compileTime: 5m}
plugins: [{name: prefer, file: %s}]
policies: [{name: trial, plugins: [{name: prefer, settings: {terminating: false}}]}]
bindings: [{namespaces: [shop], policy: trial}]
`, filepath.Join(plugins, "prefer.wasm"))))
	decided := func() bool {
		out, err := n.sluice("explain", "--socket", n.socket(), "-n", "shop", "web")
		return err == nil && strings.Contains(out, "preferred")
	}
	n.until("the first decision", decided)
	n.expect("with the policy", "p1 p2")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	load := n.load(3)
	pods := [][]int{{2}, {1, 2}, {2, 3}, {1, 2, 3}}
	killed := 0
	seconds, _ := strconv.Atoi(os.Getenv("SLUICE_KILL_SECONDS"))
	last := time.Now().Add(time.Duration(seconds) * time.Second)
	for round := 0; round < 30 || time.Now().Before(last); round++ {
		for end := time.Now().Add(time.Duration(rng.IntN(120)) * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // pace of changes
			n.endpoints(pods[rng.IntN(len(pods))]...)
		}
		for _, pid := range n.pluginProcesses() {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	t.Logf("%d connections, %d kills", load.stop(30), killed)
	if killed == 0 {
		t.Error("no process of a plugin was found")
	}
	n.endpoints(1, 2, 3)
	n.expect("after it all", "p1 p2 p3")
	n.until("another decision", func() bool { return decided() && len(n.pluginProcesses()) == 1 })
	pid := n.pluginProcesses()[0]
	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Errorf("%v\n%s", err, n.log)
	}
	n.until("the end of the plugin", func() bool { _, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); return err != nil })
}
