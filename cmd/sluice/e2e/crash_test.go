package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"

	"github.com/google/go-cmp/cmp"
)

// command runs a program in the node's network namespace.
func (n *node) command(stdin string, args ...string) string {
	n.Helper()
	testenv.RequireProgram(n, args[0], "nftables iptables")
	out, err := n.lab.Node.Run(stdin, args...)
	if err != nil {
		n.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// load is clients that make connections. None may fail.
type load struct {
	n           *node
	connections atomic.Int64
	late        atomic.Int64 // that took longer than a lost SYN's repetition
	done        atomic.Bool
	all         sync.WaitGroup
}

// load starts clients, each in a goroutine.
func (n *node) load(clients int) *load {
	l := &load{n: n}
	for range clients {
		l.all.Go(func() {
			for !l.done.Load() {
				begin := time.Now()
				if a, err := n.client.Ask("tcp", vip, timeout); err != nil {
					n.Errorf("connection %d failed: %v (%+v)", l.connections.Load(), err, a)
					return
				}
				if time.Since(begin) > 900*time.Millisecond {
					l.late.Add(1)
				}
				l.connections.Add(1)
				time.Sleep(500 * time.Microsecond) // pace of a client
			}
		})
	}
	n.Cleanup(func() { l.stop(0) })
	return l
}

// stop stops the clients after at least atLeast connections, and returns their number.
func (l *load) stop(atLeast int64) int64 {
	l.n.Helper()
	defer l.all.Wait()
	defer l.done.Store(true)
	testenv.Eventually(l.n, fmt.Sprint(atLeast, " connections"), func() bool { return l.connections.Load() >= atLeast || l.n.Failed() })
	return l.connections.Load()
}

// TestKillAtRandomTimesFailsNoConnection starts and kills sluice while its Service changes. p2 is always an endpoint.
// SLUICE_KILL_CONNECTIONS is a number of connections to make: then none may be late either, which only a quiet machine can
// promise.
func TestKillAtRandomTimesFailsNoConnection(t *testing.T) {
	n := newNode(t)
	for i := range 60 { // makes a start take several transactions
		n.write(fmt.Sprintf("more%d.yaml", i), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: more%[1]d, namespace: shop}
spec: {clusterIP: 10.96.1.%[1]d, clusterIPs: [10.96.1.%[1]d], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: more%[1]d, namespace: shop, labels: {kubernetes.io/service-name: more%[1]d}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.1], conditions: {ready: true}}, {addresses: [10.244.1.%[1]d], conditions: {ready: true}}]
`, i+1))
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	n.run()
	n.expect("running", "p1 p2")
	load := n.load(3)
	pods := [][]int{{2}, {1, 2}, {2, 3}, {1, 2, 3}}
	const kills = 30
	least, limit := int64(kills), timeout
	if text := os.Getenv("SLUICE_KILL_CONNECTIONS"); text != "" {
		var err error
		if least, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatal(err)
		}
		limit = time.Hour
	}
	begin, done := time.Now(), 0
	for ; done < kills || load.connections.Load() < least && time.Since(begin) < limit && !t.Failed(); done++ {
		life := time.Duration(rng.IntN(120)) * time.Millisecond
		for end := time.Now().Add(life); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // pace of changes
			n.endpoints(pods[rng.IntN(len(pods))]...)
			n.write("more1.yaml", fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: more1, namespace: shop}\n"+
				"spec: {clusterIP: 10.96.1.1, clusterIPs: [10.96.1.1], ports: [{name: http, port: %d}]}\n", 80+rng.IntN(4)))
		}
		n.stop(syscall.SIGKILL)
		n.start()
	}
	t.Logf("%d connections, %d late, %d kills", load.stop(least), load.late.Load(), done)
	if late := load.late.Load(); late > 0 && least > kills {
		t.Errorf("%d connections were late", late)
	}
	n.logs("synced all services") // what the last process that was killed left undone is done
	// All of them: in mode ipvs one that is removed drains, and a restart deletes it if its connections have ended by then.
	n.endpoints(1, 2, 3)
	n.expect("after it all", "p1 p2 p3")
	n.stop(syscall.SIGTERM)
	n.run()
	n.logs("netlink_messages=0")
}

// listing returns sluice's tables as nft prints them, without counters, order, and the endpoint of each slot.
func (n *node) listing() string {
	n.Helper()
	text := n.command("", "nft", "list", "ruleset")
	text = regexp.MustCompile(`packets \d+ bytes \d+|# progname .*`).ReplaceAllString(text, "") // nft does not always find the owner of a table
	text = regexp.MustCompile(` : 10\.244\.0\.\d`).ReplaceAllString(text, " : a member")
	lines := strings.Split(text, "\n")
	slices.Sort(lines) // tables, sets and chains are listed in order of creation
	return strings.Join(lines, "\n")
}

func TestExternalChangesAreRepairedImmediately(t *testing.T) {
	n := newNode(t)
	n.run("--config", n.configured("metricsBindAddress: ''\nhealthzBindAddress: ''\nsyncPeriod: 1h\n")) // repairs are triggered by notifications only
	n.expect("running", "p1 p2")
	whole := n.listing()
	repairs := func() int { return strings.Count(n.log.String(), "data plane changed by another process") }
	for _, c := range []struct {
		name, script string
		harmless     bool // connections are not affected
	}{
		{"table deleted", "delete table ip sluice", false},
		{"everything flushed", "flush ruleset", false},
		{"frontends flushed", "flush set ip sluice frontends", false},
		{"a slot deleted", "delete element ip sluice slots { 10.96.0.10 . tcp . 80 . 0 }", true},
		{"slots flushed", "flush map ip sluice slots", false},
		{"a foreign frontend", `add element ip sluice frontends { 10.96.0.99 . tcp . 80 comment "x" }`, true},
		{"a foreign rule", "insert rule ip sluice services drop", false},
		{"a foreign chain", "add chain ip sluice mine", true},
		{"rules deleted", "flush chain ip sluice pools", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := repairs()
			stop := func() {}
			if c.harmless {
				load := n.load(2)
				stop = func() { load.stop(1) }
				defer stop()
			}
			n.command(c.script+"\n", "nft", "-f", "-")
			begin := time.Now()
			for repairs() == before || n.listing() != whole {
				if time.Since(begin) > timeout {
					t.Fatalf("not repaired in time (%d repairs before, %d now)\n%s\n%s", before, repairs(), cmp.Diff(whole, n.listing()), n.log)
				}
			}
			t.Logf("repaired after %s", time.Since(begin).Round(time.Millisecond))
			stop()
			n.expect("repaired", "p1 p2")
		})
	}
	n.logs(`processes="nft (pid `)

	before := repairs()
	n.command("add table ip other\nadd set ip other s { type ipv4_addr; }\n", "nft", "-f", "-")
	for i := range 40 {
		var b strings.Builder
		for j := range 25 {
			fmt.Fprintf(&b, "add element ip other s { 10.1.%d.%d }\n", i, j)
		}
		n.command(b.String(), "nft", "-f", "-")
	}
	n.endpoints(3)
	n.expect("changed", "p3")
	testenv.Always(t, 600*time.Millisecond, "no repair after changes of another table or own changes", func() bool { return repairs() == before }, n.log.String)
}

// leftBehind are rules of kube-proxy that forward the Service to a Pod that no longer exists.
const leftBehind = `table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.10 . tcp . 80 : goto service-gone }; }
	chain service-gone { meta l4proto tcp dnat to 10.244.0.77:8080; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
}
`

func TestKubeProxyLeftoversAreRemovedOnlyOnRequest(t *testing.T) {
	if os.Getenv("SLUICE_VM") != "" {
		t.Skip("the kernels under test have no iptables")
	}
	n := newNode(t)
	if out, err := n.sluice(append(n.args("run"), "--once")...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.command(leftBehind, "nft", "-f", "-")
	n.command("*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.0.77:8080\nCOMMIT\n", "iptables-nft-restore", "--noflush")
	n.run()
	for _, want := range []string{"nftables, table ip kube-proxy", "iptables (nf_tables), ip nat: 1 chains", "--cleanup-kube-proxy"} {
		n.logs(want)
	}
	n.expect("sluice's rules come first", "p1 p2")
	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.logs("kube-proxy does not answer") // and so is no successor
	n.expect("sluice's rules stay", "p1 p2")
	n.run("--cleanup-kube-proxy")
	n.logs("removed kube-proxy leftovers")
	n.expect("removed", "p1 p2")
	listing := n.command("", "nft", "list", "ruleset")
	if strings.Contains(listing, "kube-proxy") || strings.Contains(listing, "KUBE-") {
		t.Errorf("left:\n%s", listing)
	}
	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}

	n.command(leftBehind, "nft", "-f", "-")
	if out, err := n.sluice("cleanup", "--kube-proxy"); err != nil || !strings.Contains(out, "removed nftables, table ip kube-proxy") {
		t.Errorf("%v\n%s", err, out)
	}
	n.expect("sluice's own stays", "p1 p2")
	n.command(leftBehind, "nft", "-f", "-")
	if out, err := n.sluice(append(n.args("run"), "--once", "--cleanup-kube-proxy")...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	n.expect("once", "p1 p2")
}

func TestRunRefusesWhileKubeProxyIsRunning(t *testing.T) {
	n := newNode(t)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	path := filepath.Join(t.TempDir(), "kube-proxy")
	if err == nil {
		err = os.WriteFile(path, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	other := &exec.Cmd{Path: path, Args: []string{"sleep", "3600"}}
	p, err := n.lab.Node.Start(other)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	for _, args := range [][]string{
		n.args("run"), append(n.args("run"), "--once"), append(n.args("run"), "--cleanup-kube-proxy"), {"cleanup", "--kube-proxy"},
	} {
		out, err := n.sluice(args...)
		if want := fmt.Sprintf("kube-proxy is running on this node (process %d)", p.PID()); err == nil || !strings.Contains(out, want) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	p.Kill()
	n.run()
	n.expect("it has stopped", "p1 p2")
}

// TestAnotherUserCannotPreventAStart has a process without capabilities do what might look like a sluice or a kube-proxy
// that is running.
func TestAnotherUserCannotPreventAStart(t *testing.T) {
	n := newNode(t)
	const keep, nobody = ^uintptr(0), 65534
	setUID := func(uid uintptr) error {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, uid, keep); errno != 0 { // of this thread only
			return errno
		}
		return nil
	}
	var proxyMode net.Listener
	root := uintptr(os.Geteuid())
	err := n.lab.Node.Do(func() (err error) {
		if err := setUID(nobody); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, setUID(root)) }()
		for _, name := range []string{"@sluice-writer", "@sluice-lock", "@sluice"} {
			l, err := net.Listen("unix", name)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		proxyMode, err = net.Listen("tcp", "127.0.0.1:10249")
		return err
	})
	if errors.Is(err, syscall.EINVAL) {
		t.Skip("there is only one user in this user namespace")
	}
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "iptables") })}
	go server.Serve(proxyMode)
	defer server.Close()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	named, err := n.lab.Node.Start(&exec.Cmd{Path: sleep, Args: []string{"kube-proxy", "3600"}})
	if err != nil {
		t.Fatal(err)
	}
	defer named.Kill()
	n.run()
	n.expect("running", "p1 p2")
}
