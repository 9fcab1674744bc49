package peer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// proxy is a program to measure.
type proxy struct {
	name    string
	path    string
	changes int           // how many a repetition
	pause   time.Duration // at least, between two changes
	// command writes the proxy's files for a node and returns its arguments.
	command func(s *environment, n *node) (args []string, err error)
}

// kubeProxy is kube-proxy in nftables mode. minSync 0 means its default of 1 s.
func kubeProxy(path string, minSync time.Duration, changes int) *proxy {
	return &proxy{name: "kube-proxy", path: path, changes: changes, pause: max(minSync, 50*time.Millisecond), command: func(s *environment, n *node) ([]string, error) {
		config := filepath.Join(n.dir, "kube-proxy.yaml")
		text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clientConnection: {kubeconfig: %q}
detectLocalMode: ClusterCIDR
clusterCIDR: %s
nftables: {minSyncPeriod: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, n.name, s.kubeconfigs[0], podCIDRs, minSync)
		return []string{"--config=" + config}, os.WriteFile(config, []byte(text), 0o600)
	}}
}

func sluice(name, path string, changes int) *proxy {
	return &proxy{name: name, path: path, changes: changes, pause: 50 * time.Millisecond, command: func(s *environment, n *node) ([]string, error) {
		config := filepath.Join(n.dir, "sluice.yaml")
		text := fmt.Sprintf(`apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
hostnameOverride: %s
clientConnection: {kubeconfig: %q}
detectLocalMode: ClusterCIDR
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, n.name, s.kubeconfigs[1], podCIDRs)
		args := []string{"run", "--config", config, "--checkpoint", filepath.Join(n.dir, "checkpoint"), "--socket", filepath.Join(n.dir, "sock")}
		return args, os.WriteFile(config, []byte(text), 0o600)
	}}
}

// runningProxy is a proxy that runs on a node.
type runningProxy struct {
	*proxy
	benchutil.Process
	node     *node
	started  time.Time // just before it was started
	children *benchutil.ChildMonitor
	program  *testnet.Program
}

// start starts a proxy in a node's namespace.
func (p *proxy) start(s *environment, n *node) (*runningProxy, error) {
	args, err := p.command(s, n)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(n.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(p.path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.dir, log, log
	cmd.Env = []string{"HOME=" + n.dir, "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r := &runningProxy{proxy: p, node: n, started: time.Now()}
	if r.program, err = n.lab.Node.Start(cmd); err != nil {
		return nil, err
	}
	r.Process = benchutil.Process(r.program.PID())
	r.children = r.MonitorChildren()
	return r, nil
}

// stop stops the proxy; its rules stay. It returns the peak memory of its children in MiB.
func (r *runningProxy) stop() (childrenPeak float64) {
	r.end()
	return r.children.Stop()
}

// end ends the process; it may have ended.
func (r *runningProxy) end() { _ = r.program.End(syscall.SIGTERM, 10*time.Second) }

// logTail returns the end of the proxy's log.
func (r *runningProxy) logTail() string {
	text, _ := os.ReadFile(filepath.Join(r.node.dir, "log"))
	return string(text[max(0, len(text)-4096):])
}

// withLog adds the end of the proxy's log to an error.
func (r *runningProxy) withLog(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-r.program.Ended():
		err = errors.Join(err, fmt.Errorf("process ended: %w", r.program.Wait()))
	default:
	}
	return fmt.Errorf("%s: %w\n%s", r.name, err, r.logTail())
}

// A proxy is idle after idleWindows consecutive windows with at most maxIdleCPU of CPU time each.
const (
	idleWindow  = 50 * time.Millisecond
	idleWindows = 4
	maxIdleCPU  = idleWindow / 10
)

// waitUntilIdle waits until the proxy is idle, so that all work of the last update is counted.
func (r *runningProxy) waitUntilIdle(timeout time.Duration) error {
	last, err := r.TotalCPU()
	if err != nil {
		return err
	}
	still := 0
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		time.Sleep(idleWindow)
		now, err := r.TotalCPU()
		if err != nil {
			return err
		}
		still++
		if now-last > maxIdleCPU || len(r.Children()) > 0 {
			still = 0
		}
		if still == idleWindows {
			return nil
		}
		last = now
	}
	return fmt.Errorf("not idle after %s", timeout)
}
