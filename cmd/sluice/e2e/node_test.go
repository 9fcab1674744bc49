// Package e2e runs the built binary on a node that is a network namespace with Pods around it.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

func TestMain(m *testing.M) {
	if !testnet.Inside() && os.Getenv("SLUICE_BINARY") == "" {
		if err := ociregistry.Build(context.Background(), os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	testnet.Main(tests{m})
}

// tests are those of this package.
type tests struct{ m *testing.M }

// program is what they run.
var program string

// Run is called by testnet.Main.
func (t tests) Run() int {
	if program = os.Getenv("SLUICE_BINARY"); program != "" { // in a test kernel, where nothing can be built
		return t.m.Run()
	}
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "sluice")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/sluice-proxy/sluice/cmd/sluice").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build sluice: %v\n%s", err, out)
		return 1
	}
	return t.m.Run()
}

// node is a node with three serving Pods, a client Pod, a directory of manifests, and sluice.
type node struct {
	*testing.T
	lab     *testnet.Lab
	client  *testnet.Host
	pods    map[string]*testnet.Host
	servers map[string]*testnet.Server // of the Pods
	dir     string                     // the cluster
	state   string                     // checkpoint and socket
	process *testnet.Program           // sluice run
	log     *testnet.Log               // its
}

// timeout is generous, because the machine may be busy, or a test kernel.
const timeout = 3 * time.Minute

var vip = netip.MustParseAddrPort("10.96.0.10:80")

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getenv("SLUICE_BINARY") == "" {
		testenv.DependOnSources(t)
	}
	n := &node{T: t, dir: t.TempDir(), state: t.TempDir(), pods: map[string]*testnet.Host{}, servers: map[string]*testnet.Server{}}
	var err error
	if n.lab, err = testnet.New(netip.MustParseAddr("192.168.0.1")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.lab.Close)
	host := func(name, addr string) *testnet.Host {
		h, err := n.lab.AddHost(name, netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for i := 1; i <= 3; i++ {
		p := host(fmt.Sprint("p", i), fmt.Sprint("10.244.0.", i))
		n.pods[p.Name] = p
		n.serve(p)
	}
	n.client = host("client", "10.244.0.9")
	n.write("service.yaml", `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}
`)
	n.endpoints(1, 2)
	return n
}

// serve serves on a Pod.
func (n *node) serve(p *testnet.Host) {
	n.Helper()
	s, err := p.Serve("tcp", netip.AddrPortFrom(p.Addrs[0], 8080), p.Name)
	if err != nil {
		n.Fatal(err)
	}
	n.servers[p.Name] = s
	n.Cleanup(s.Close)
}

// write replaces a manifest atomically.
func (n *node) write(name, text string) {
	n.Helper()
	temp := filepath.Join(n.dir, "."+name+".tmp")
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(n.dir, name)); err != nil {
		n.Fatal(err)
	}
}

func (n *node) endpoints(pods ...int) {
	n.Helper()
	text := `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`
	for _, p := range pods {
		text += fmt.Sprintf("- {addresses: [10.244.0.%d], conditions: {ready: true}}\n", p)
	}
	n.write("slice.yaml", text)
}

// sluice runs a command of sluice on the node.
func (n *node) sluice(args ...string) (string, error) {
	return n.lab.Node.Run("", append([]string{program}, args...)...)
}

// run starts `sluice run` and waits until it has programmed the node.
func (n *node) run(more ...string) {
	n.Helper()
	n.start(more...)
	n.logs("synced all services")
}

// start starts `sluice run` and does not wait.
func (n *node) start(more ...string) {
	n.Helper()
	n.log = &testnet.Log{}
	cmd := exec.Command(program, append(n.args("run"), more...)...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	var err error
	if n.process, err = n.lab.Node.Start(cmd); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(n.process.Kill)
}

func (n *node) socket() string { return filepath.Join(n.state, "sock") }

func (n *node) args(command string) []string {
	out := []string{command, "--node", "n1", "--source", n.dir, "--socket", n.socket()}
	if command == "run" {
		out = append(out, "--checkpoint", filepath.Join(n.state, "checkpoint"))
		if mode := os.Getenv("SLUICE_MODE"); mode != "" { // nftables or ipvs; default: the configuration's
			out = append(out, "--mode", mode)
		}
	}
	return out
}

// stop sends a signal and waits for the exit.
func (n *node) stop(s os.Signal) error {
	return n.process.End(s, timeout)
}

// logs waits for a text in the log.
func (n *node) logs(text string) {
	n.Helper()
	testenv.Eventually(n, "logs "+text, func() bool { return strings.Contains(n.log.String(), text) }, n.log.String)
}

// answers returns the Pods that answer forty connections. A failed one is an error.
func (n *node) answers() (string, error) {
	seen := map[string]bool{}
	for range 40 {
		a, err := n.client.Ask("tcp", vip, testnet.AnswerTimeout)
		if err != nil {
			return "", err
		}
		seen[a.Server] = true
	}
	var names []string
	for i := 1; i <= 3; i++ {
		if name := fmt.Sprint("p", i); seen[name] {
			names = append(names, name)
		}
	}
	return strings.Join(names, " "), nil
}

func (n *node) expect(what, want string) {
	n.Helper()
	var got string
	var err error
	testenv.Eventually(n, what+": answers of "+want, func() bool {
		got, err = n.answers()
		return err == nil && got == want
	}, func() string { return fmt.Sprintf("%q (%v)", got, err) }, n.log.String)
}

func TestForwardingContinuesAfterStopAndKill(t *testing.T) {
	n := newNode(t)
	n.run()
	n.expect("running", "p1 p2")
	n.endpoints(2, 3)
	n.expect("changed", "p2 p3")

	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Fatalf("a clean stop: %v\n%s", err, n.log)
	}
	n.expect("stopped", "p2 p3")
	n.run()
	n.logs("netlink_messages=0")
	if err := n.stop(syscall.SIGKILL); err == nil {
		t.Fatal("killed, and no error")
	}
	n.expect("killed", "p2 p3")
	n.endpoints(1)
	n.run()
	n.expect("what changed in the meantime", "p1")
}

func TestInvalidInputIsReportedAndForwardingContinues(t *testing.T) {
	n := newNode(t)
	n.run()
	n.expect("running", "p1 p2")
	if err := os.WriteFile(filepath.Join(n.dir, "slice.yaml"), []byte("apiVersion: discovery.k8s.io/v1\nkind: Endpoi"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.logs("slice.yaml")
	n.expect("half-written", "p1 p2")
	n.write("more.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: odd, namespace: shop}\nspec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}\n")
	n.logs("Service shop/odd")
	n.logs("spec.clusterIP")
	n.endpoints(3)
	n.expect("whole again", "p3")
	out, err := n.sluice("explain", "--socket", n.socket(), "-n", "shop", "web")
	if err != nil || !strings.Contains(out, "10.244.0.3:8080") || !strings.Contains(out, "1 of 1") {
		t.Fatalf("explain: %v\n%s", err, out)
	}
	n.statusAndDrains()
}

// statusAndDrains: an endpoint drains that has a connection. Only p3 has new ones before.
func (n *node) statusAndDrains() {
	n.Helper()
	c, err := n.client.Dial(n.Context(), "tcp", vip)
	if err == nil {
		_, err = testnet.Greeting(c)
	}
	if err != nil {
		n.Fatal(err)
	}
	defer c.Close()
	n.endpoints(1)
	slice, err := os.ReadFile(filepath.Join(n.dir, "slice.yaml"))
	if err != nil {
		n.Fatal(err)
	}
	n.write("slice.yaml", string(slice)+"- {addresses: [10.244.0.3], conditions: {ready: false, serving: true, terminating: true}}\n")
	n.expect("draining", "p1")
	// The invalid Service is a problem of the source, not of what is in force.
	out, err := n.sluice("status", "--socket", n.socket(), "--fail-on", "failing")
	if err != nil || !strings.Contains(out, "node           n1") || !strings.Contains(out, "drains         1 endpoint ") {
		n.Errorf("status: %v\n%s", err, out)
	}
	out, err = n.sluice("drains", "--socket", n.socket(), "-n", "shop", "web", "-o", "json")
	var x api.Drains
	if err == nil {
		err = json.Unmarshal([]byte(out), &x)
	}
	if err != nil || len(x.Drains) != 1 || x.Drains[0].Address != "10.244.0.3:8080" || x.Drains[0].Connections == nil || *x.Drains[0].Connections != 1 {
		n.Errorf("drains: %v\n%s", err, out)
	}
}

func TestOnceProgramsAndCleanupRemovesOnlyOwnObjects(t *testing.T) {
	n := newNode(t)
	n.command("add table inet mine; add chain inet mine c { type filter hook input priority 0 ; }", "nft", "-f", "-")
	before := n.command("", "nft", "list", "ruleset")

	if out, err := n.sluice(append(n.args("run"), "--once")...); err != nil || strings.Contains(out, "stopped watching nf_tables") {
		t.Fatalf("%v\n%s", err, out)
	}
	n.log = &testnet.Log{}
	n.expect("programmed once", "p1 p2")
	if listing := n.command("", "nft", "list", "ruleset"); !strings.Contains(listing, `comment "shop/web:http ClusterIP"`) || !strings.Contains(listing, "table inet mine") {
		t.Fatalf("the listing:\n%s", listing)
	}
	if out, err := n.sluice("cleanup"); err != nil || !strings.Contains(out, "removed nftables table ip sluice") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := n.sluice("cleanup"); err != nil || !strings.Contains(out, "nothing to remove") {
		t.Fatalf("%v\n%s", err, out)
	}
	if after := n.command("", "nft", "list", "ruleset"); after != before {
		t.Fatalf("after the cleanup:\n%s\nbefore:\n%s", after, before)
	}
	const silence = 2 * time.Second // an answer takes a millisecond
	if a, err := n.client.Ask("tcp", vip, silence); err == nil {
		t.Fatalf("%s answers after the cleanup", a.Server)
	}
}

func TestSecondSluiceIsRefused(t *testing.T) {
	n := newNode(t)
	n.run()
	for name, args := range map[string][]string{
		"run":              n.args("run"),
		"run --once":       append(n.args("run"), "--once"),
		"with other files": {"run", "--node", "n1", "--source", n.dir, "--socket", filepath.Join(t.TempDir(), "sock"), "--checkpoint", ""},
		"cleanup":          {"cleanup"},
	} {
		out, err := n.sluice(args...)
		if want := fmt.Sprintf("another sluice is running on this node (process %d)", n.process.PID()); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	n.expect("the first one keeps forwarding", "p1 p2")
}
