package guide

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

const nodeName = "n1"

// node is the machine as a node of a cluster: Pods on it, a client outside, and an administrator's shell.
type node struct {
	*testing.T
	*testcluster.Cluster
	network *testnet.Lab // between the node, the API server and outside
	here    *testnet.Lab // the machine
	client  *testnet.Host
	outside *testnet.Host
	pods    []*testnet.Host
	home    string // of the administrator, with .kube/config; the working directory of commands
	path    string
}

func newNode(t *testing.T) *node {
	t.Helper()
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	n := &node{T: t, home: t.TempDir()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Sethostname([]byte(nodeName)))
	var err error
	n.network, err = testnet.New(addr("172.18.0.1"), addr("fd00:18::1"))
	must(err)
	t.Cleanup(n.network.Close)
	n.outside, err = n.network.AddHost("outside", addr("203.0.113.7"), addr("2001:db8::7"))
	must(err)
	ranges := []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd00:10:244:1::/64")}
	n.here, err = n.network.AddMachine(nodeName, ranges, addr("172.18.0.11"), addr("fd00:18::11"))
	must(err)
	t.Cleanup(n.here.Close)
	// The network routes load balancer addresses to the node, as MetalLB or a router does.
	for _, p := range []string{"198.18.0.0/24", "fd00:1:198::/64"} {
		must(n.network.Route(prefix(p), n.here.Node))
	}
	for i := 1; i <= 3; i++ {
		p, err := n.here.AddHost(fmt.Sprint("p", i), addr(fmt.Sprint("10.244.1.", i)), addr(fmt.Sprint("fd00:10:244:1::", i)))
		must(err)
		for _, a := range p.Addrs {
			for _, network := range []string{"tcp", "udp"} {
				s, err := p.Serve(network, netip.AddrPortFrom(a, 8080), p.Name)
				must(err)
				t.Cleanup(s.Close)
			}
		}
		n.pods = append(n.pods, p)
	}
	n.client, err = n.here.AddHost("client", addr("10.244.1.99"), addr("fd00:10:244:1::99"))
	must(err)

	n.Cluster, err = testcluster.Start(t.Context(), testcluster.Options{Host: n.network.Node, NoControllers: true})
	must(err)
	t.Cleanup(n.Cluster.Close)
	n.LogOnFailure(t)
	must(n.AddNode(t.Context(), testcluster.Node{Name: nodeName, Addrs: n.here.Node.Addrs, Pods: ranges}))
	n.shell()
	return n
}

// shell creates the administrator's home and PATH with sluice, kubectl and the system's programs.
func (n *node) shell() {
	n.Helper()
	bin := filepath.Join(n.home, "bin")
	kubectl, err := binaries.Find(binaries.Kubectl)
	if err == nil {
		err = errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(filepath.Join(n.home, ".kube"), 0o755))
	}
	if err == nil {
		err = os.Symlink(filepath.Join(kubectl, binaries.Kubectl), filepath.Join(bin, "kubectl"))
	}
	if err == nil {
		err = os.Symlink(os.Getenv("SLUICE_BINARY"), filepath.Join(bin, "sluice"))
	}
	var config []byte
	if err == nil {
		config, err = os.ReadFile(filepath.Join(n.Dir(), "admin.kubeconfig"))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(n.home, ".kube", "config"), config, 0o600)
	}
	if err != nil {
		n.Fatal(err)
	}
	n.path = bin + ":" + os.Getenv("PATH")
	for _, program := range []string{"ipvsadm", "ipset", "nft", "ip", "sysctl"} {
		if _, err := exec.LookPath(program); err != nil {
			n.Fatalf("%v: apt-get install ipvsadm ipset nftables iproute2 procps", err)
		}
	}
	// Both variants of iptables are tested: legacy on the older kernel.
	kind := "nft"
	if strings.HasPrefix(os.Getenv("SLUICE_VM"), "linux-6.1_") {
		kind = "legacy"
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(family + "-" + kind + what)
			if err == nil {
				err = os.Symlink(program, filepath.Join(bin, family+what))
			}
			if err != nil {
				n.Fatalf("%v: apt-get install iptables", err)
			}
		}
	}
}

// command returns a command line of the administrator on the node.
func (n *node) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = n.home
	cmd.Env = []string{"HOME=" + n.home, "PATH=" + n.path, "TMPDIR=" + os.TempDir(), "LC_ALL=C"}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs a command line, logs it, and returns its output.
func (n *node) run(line string) (string, error) {
	n.Logf("# %s", line)
	out, err := n.poll(line)
	if n.Logf("%s", out); err != nil {
		n.Logf("%v", err)
	}
	return out, err
}

// poll is run without logging, for polling.
func (n *node) poll(line string) (string, error) {
	ctx, cancel := context.WithTimeout(n.Context(), timeout)
	defer cancel()
	var out bytes.Buffer
	cmd := n.command(ctx, line)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := n.here.Node.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	return out.String(), err
}

// mustRun is run, and fails the test on an error.
func (n *node) mustRun(line string) string {
	n.Helper()
	out, err := n.run(line)
	if err != nil {
		n.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// daemon is a program in the background.
type daemon struct {
	*node
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	log   buffer
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts a daemon until the end of the test, which prints its log on failure.
func (n *node) start(name, line string) *daemon {
	n.Helper()
	n.Logf("# %s &", line)
	d := &daemon{node: n, name: name, cmd: n.command(context.Background(), "exec "+line), ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := n.here.Node.Do(d.cmd.Start); err != nil {
		n.Fatal(err)
	}
	go func() { _ = d.cmd.Wait(); close(d.ended) }()
	n.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.ended
		if n.Failed() {
			n.Logf("--- %s\n%s", name, &d.log)
		}
	})
	return d
}

// stop stops it as a container runtime does.
func (d *daemon) stop() {
	d.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.Fatal(err)
	}
	<-d.ended
}

// timeout is for one slow, busy CPU.
const timeout = 8 * time.Minute

// eventually waits until f returns no error.
func (n *node) eventually(what string, f func() error) {
	n.Helper()
	if err := until(nil, f); err != nil {
		n.Fatalf("%s: %v", what, err)
	}
}

// until is eventually, but ends when over is closed.
func until(over <-chan struct{}, f func() error) (err error) {
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		if err = f(); err == nil {
			return nil
		}
		select {
		case <-over:
			return fmt.Errorf("it has ended, and %w", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return err
}

// eventually waits until f returns no error, or the daemon exits.
func (d *daemon) eventually(what string, f func() error) {
	d.Helper()
	if err := until(d.ended, f); err != nil {
		d.Fatalf("%s: %s: %v", d.name, what, err)
	}
}

// logs waits for a text in its log.
func (d *daemon) logs(text string) {
	d.Helper()
	d.eventually("logs "+text, func() error {
		if strings.Contains(d.log.String(), text) {
			return nil
		}
		return errors.New("that is not in its log")
	})
}
