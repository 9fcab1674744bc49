package main

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

// proxy is a program that is measured.
type proxy struct {
	name    string
	changes int           // how many a repetition
	pause   time.Duration // at least, between two changes
	// command writes what it needs of files for a node and gives its arguments.
	command func(s *site, n *node) (path string, args []string, err error)
}

// kubeProxy in nftables mode. A minSync of 0 would be its default of 1 s.
func kubeProxy(path string, minSync time.Duration, changes int) *proxy {
	return &proxy{name: "kube-proxy", changes: changes, pause: max(minSync, 50*time.Millisecond), command: func(s *site, n *node) (string, []string, error) {
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
`, n.name, s.users[kubeProxyUser], podRange, minSync)
		return path, []string{"--config=" + config}, os.WriteFile(config, []byte(text), 0o600)
	}}
}

func sluice(path string, changes int) *proxy {
	return &proxy{name: "sluice", changes: changes, pause: 50 * time.Millisecond, command: func(s *site, n *node) (string, []string, error) {
		config := filepath.Join(n.dir, "sluice.yaml")
		text := fmt.Sprintf(`apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
hostnameOverride: %s
clientConnection: {kubeconfig: %q}
detectLocalMode: ClusterCIDR
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, n.name, s.users[sluiceUser], podRange)
		args := []string{"run", "--config", config, "--checkpoint", filepath.Join(n.dir, "checkpoint"), "--socket", filepath.Join(n.dir, "sock")}
		return path, args, os.WriteFile(config, []byte(text), 0o600)
	}}
}

// running is a proxy on a node.
type running struct {
	*proxy
	benchutil.Process
	node     *node
	begin    time.Time // just before it was started
	children *benchutil.ChildMonitor
	life     *testnet.Program
}

// start starts a proxy in a node's namespace.
func (p *proxy) start(s *site, n *node) (*running, error) {
	path, args, err := p.command(s, n)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(n.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.dir, log, log
	cmd.Env = []string{"HOME=" + n.dir, "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r := &running{proxy: p, node: n, begin: time.Now()}
	if r.life, err = n.lab.Node.Start(cmd); err != nil {
		return nil, err
	}
	r.Process = benchutil.Process(r.life.PID())
	r.children = r.MonitorChildren()
	return r, nil
}

// stop ends it; what it has programmed stays. It gives the peak of its children, in MiB.
func (r *running) stop() (childrenPeak float64) {
	childrenPeak = r.children.Stop()
	_ = r.life.End(syscall.SIGTERM, 10*time.Second)
	return childrenPeak
}

// log is the end of what it has logged.
func (r *running) log() string {
	text, _ := os.ReadFile(filepath.Join(r.node.dir, "log"))
	return string(text[max(0, len(text)-4096):])
}

// explain adds what it has logged to an error.
func (r *running) explain(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-r.life.Ended():
		err = errors.Join(err, fmt.Errorf("it has ended: %v", r.life.Wait()))
	default:
	}
	return fmt.Errorf("%s: %w\n%s", r.name, err, r.log())
}

// What counts as quiet: so little CPU time in each of some spans, one after the other.
const (
	quietSpan  = 50 * time.Millisecond
	quietSpans = 4
	quietCPU   = quietSpan / 10
)

// quiet waits until the proxy does nothing: whatever followed the last change is over, and counted.
func (r *running) quiet(within time.Duration) error {
	last, err := r.TotalCPU()
	if err != nil {
		return err
	}
	still := 0
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		time.Sleep(quietSpan)
		now, err := r.TotalCPU()
		if err != nil {
			return err
		}
		still++
		if now-last > quietCPU || len(r.Children()) > 0 {
			still = 0
		}
		if still == quietSpans {
			return nil
		}
		last = now
	}
	return fmt.Errorf("not quiet after %s", within)
}
