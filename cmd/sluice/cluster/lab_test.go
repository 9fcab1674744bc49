// Package cluster runs the built binary on the nodes of a real cluster: kubectl and controllers write to the API server,
// sluice watches it with the service account of deploy/, and connections from Pods and from outside test the result.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testcluster.Main(tests{m}) }

// tests share one cluster, because a control plane takes seconds to start.
type tests struct{ m *testing.M }

// shared is that cluster.
var shared *lab

// lab is a cluster of two nodes in two zones, and a client outside.
//
//	outside ── network (API server, etcd, controllers) ─┬─ n1, zone a ── its Pods
//	                                                    └─ n2, zone b ── its Pods
type lab struct {
	*testcluster.Cluster
	network       *testnet.Lab
	outside       *testnet.Host
	nodes         map[string]*labNode
	sluice        string            // the program
	kubectlSluice string            // the kubectl plugin
	plugins       map[string]string // module files by name
	service       string            // kubeconfig of sluice's service account
	pods          int               // created so far
	sources       sync.Once
}

// labNode is a node of the lab.
type labNode struct {
	*testnet.Lab
	name   string
	number int // its Pods are in 10.244.number.0/24
	addr   netip.Addr
	addr6  netip.Addr
	client *testnet.Host // a Pod that is in no Service
}

const (
	account = "system:serviceaccount:" + accountNamespace + ":" + accountName
	pods4   = "10.244.0.0/16"
	pods6   = "fd00:10:244::/56"
)

// Run is called by testcluster.Main.
func (t tests) Run() int {
	dir, err := os.MkdirTemp("", "sluice-cluster-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster tests:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	shared = &lab{nodes: map[string]*labNode{}, plugins: map[string]string{}}
	defer shared.close()
	if err := errors.Join(shared.build(dir), shared.start(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, "cluster tests:", err)
		return 1
	}
	code := t.m.Run()
	if code == 0 && runsAllTests() {
		if err := shared.checkRules(); err != nil {
			fmt.Fprintln(os.Stderr, "--- FAIL: what the whole run has requested:", err)
			return 1
		}
	}
	return code
}

// version is that of the binaries: without it, it depends on the clone.
const version = "v0.1.0"

// build builds the binary and its plugins.
func (l *lab) build(dir string) error {
	run := func(env []string, args ...string) error {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	const module = "github.com/sluice-proxy/sluice/"
	l.sluice, l.kubectlSluice = filepath.Join(dir, "sluice"), filepath.Join(dir, "kubectl-sluice")
	if err := run([]string{"CGO_ENABLED=0"}, "build", "-ldflags=-X main.version="+version, "-o", dir, module+"cmd/sluice", module+"cmd/kubectl-sluice"); err != nil {
		return err
	}
	for name, path := range map[string]string{
		"locality": "plugins/locality", "lifecycle": "plugins/lifecycle", "utilization": "plugins/utilization", "weighing": "cmd/sluice/testdata/plugins/weighing",
	} {
		l.plugins[name] = filepath.Join(dir, name+".wasm")
		err := run([]string{"GOOS=wasip1", "GOARCH=wasm"}, "build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-s -w", "-o", l.plugins[name], module+path)
		if err == nil {
			err = testenv.Embed(l.plugins[name], filepath.Join("..", "..", "..", path))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) start(ctx context.Context) (err error) {
	l.network, err = testnet.New(netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fd00:18::1"))
	if err != nil {
		return err
	}
	if l.outside, err = l.network.AddHost("outside", netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")); err != nil {
		return err
	}
	if l.Cluster, err = testcluster.Start(ctx, testcluster.Options{
		Host: l.network.Node, Audit: audited(), Controllers: []string{"deployment-controller", "replicaset-controller"},
	}); err != nil {
		return err
	}
	for i, zone := range []string{"a", "b"} {
		if err := l.addPlace(ctx, i+1, zone); err != nil {
			return err
		}
	}
	if err := l.deploy(ctx); err != nil {
		return err
	}
	l.service, err = l.ServiceAccountKubeconfig(ctx, accountNamespace, accountName)
	return err
}

// addPlace creates a node: its network namespace with a client, and its Node object.
func (l *lab) addPlace(ctx context.Context, i int, zone string) error {
	p := &labNode{
		name: fmt.Sprint("n", i), number: i,
		addr: netip.AddrFrom4([4]byte{172, 18, 0, byte(10 + i)}), addr6: netip.MustParseAddr(fmt.Sprintf("fd00:18::%d", 10+i)),
	}
	ranges := []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", i)),
	}
	var err error
	if p.Lab, err = l.network.AddNode(p.name, ranges, p.addr, p.addr6); err != nil {
		return err
	}
	l.nodes[p.name] = p
	if p.client, err = p.AddHost("client", p.podAddrs(200)...); err != nil {
		return err
	}
	return l.AddNode(ctx, testcluster.Node{Name: p.name, Zone: zone, Addrs: []netip.Addr{p.addr, p.addr6}, Pods: ranges})
}

// podAddrs returns the addresses of the node's i-th Pod.
func (p *labNode) podAddrs(i int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{10, 244, byte(p.number), byte(i)}),
		netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%x", p.number, i)),
	}
}

func (l *lab) close() {
	if l.Cluster != nil {
		l.Close()
	}
	for _, n := range l.nodes {
		n.Lab.Close()
	}
	if l.network != nil {
		l.network.Close()
	}
}

// scene is one test's part of the cluster: a namespace, and the sluices that it runs.
type scene struct {
	*testing.T
	*lab
	ctx  context.Context
	ns   string
	runs map[string]*run // by node
}

// newScene creates a scene, and deletes its objects when the test ends.
func newScene(t *testing.T, ns string) *scene {
	t.Helper()
	shared.sources.Do(func() { testenv.DependOnSources(t) })
	s := &scene{T: t, lab: shared, ctx: t.Context(), ns: ns, runs: map[string]*run{}}
	s.LogOnFailure(t)
	s.must(s.AddNamespace(s.ctx, ns))
	t.Cleanup(func() {
		// All objects must be deleted before the next test starts.
		s.afterwards("-n", ns, "delete", "deployment,service,endpointslice", "--all")
		ctx, now := context.Background(), int64(0) // the test's own context has ended
		options := metav1.DeleteOptions{GracePeriodSeconds: &now}
		if err := s.Client.CoreV1().Pods(ns).DeleteCollection(ctx, options, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
		if err := s.Client.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// apply runs kubectl apply in the namespace.
func (s *scene) apply(manifests string) {
	s.Helper()
	_, err := s.Kubectl(s.ctx, manifests, "apply", "-n", s.ns, "-f", "-")
	s.must(err)
}

// kubectl runs kubectl in the namespace, and returns its output.
func (s *scene) kubectl(args ...string) string {
	s.Helper()
	out, err := s.Kubectl(s.ctx, "", append([]string{"-n", s.ns}, args...)...)
	s.must(err)
	return strings.TrimSpace(out)
}

// afterwards runs kubectl in a Cleanup, when the test's context has ended.
func (s *scene) afterwards(args ...string) {
	if _, err := s.Kubectl(context.Background(), "", args...); err != nil {
		s.Error(err)
	}
}

// timeout is generous, because the machine may be busy.
const timeout = 3 * time.Minute

// eventually waits until f returns no error.
func (s *scene) eventually(what string, f func() error) {
	s.Helper()
	var err error
	testenv.Within(s, timeout, what, func() bool { err = f(); return err == nil }, func() string { return err.Error() }, s.logs)
}
