package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// ipvsNode is a node with a configuration file, on a kernel with IPVS.
type ipvsNode struct {
	*node
	file string
}

func newIPVSNode(t *testing.T) *ipvsNode {
	t.Helper()
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS; make test-vm runs this on one that has")
	}
	n := &ipvsNode{newNode(t), filepath.Join(t.TempDir(), "sluice.yaml")}
	n.write("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n")
	return n
}

func (n *ipvsNode) configure(more string) {
	n.Helper()
	temp := n.file + ".tmp"
	text := "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nmetricsBindAddress: ''\nhealthzBindAddress: 127.0.0.1:10256\nsyncPeriod: 1s\nminSyncPeriod: 0s\n" + more
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
	if err := os.Rename(temp, n.file); err != nil {
		n.Fatal(err)
	}
}

// until waits until f returns ""; otherwise f describes what is wrong.
func (n *ipvsNode) until(what string, wrong func() string) {
	n.Helper()
	why := ""
	testenv.Eventually(n, what, func() bool { why = wrong(); return why == "" }, func() string { return why }, n.log.String)
}

// healthy waits until both health checks succeed.
func (n *ipvsNode) healthy(what string) {
	n.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return n.lab.Node.Dial(ctx, "tcp", netip.MustParseAddrPort("127.0.0.1:10256"))
		},
	}, Timeout: timeout}
	n.until(what, func() string {
		for _, path := range []string{"/healthz", "/livez"} {
			resp, err := client.Get("http://node" + path)
			if err != nil {
				return err.Error()
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return path + ": " + resp.Status
			}
		}
		return ""
	})
}

// addService writes a Service with endpoints.
func (n *ipvsNode) addService(name, spec string, endpoints ...string) {
	n.Helper()
	n.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {%[2]s, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [%[3]s], conditions: {ready: true}}]
`, name, spec, strings.Join(endpoints, "], conditions: {ready: true}}, {addresses: [")))
}

func TestIPVSModeRepairsExternalChangesAndKeepsOthersObjects(t *testing.T) {
	n := newIPVSNode(t)
	state := func() string {
		return n.command("", "sh", "-c", "ipvsadm -Sn | sort; ipvsadm -Ln --thresholds | awk '/->/ {print $2, $3, $4}' | sort; "+
			"ip -o addr show | awk '!/fe80/ {print $2, $4}' | sort; cat /proc/sys/net/ipv4/vs/conntrack /proc/sys/net/ipv4/vs/expire_nodest_conn")
	}
	n.command("", "sh", "-c", "ipvsadm -A -f 1558183936 -s rr; ipvsadm -a -f 1558183936 -r 10.244.0.3:9090 -m; ipvsadm -A -u 10.96.0.10:80 -s rr; "+
		"ipvsadm -A -t 172.16.0.1:80 -s rr; ip link add theirs type dummy; ip addr add 172.16.0.1/32 dev theirs noprefixroute")
	theirs := state()
	n.addService("outside", "clusterIP: 10.96.0.30, clusterIPs: [10.96.0.30]", "10.244.0.1")
	n.configure("mode: ipvs\n")
	n.run("--config", n.file)
	n.expect("running", "p1 p2")
	whole := state()
	for _, script := range []string{
		"ipvsadm -d -t 10.96.0.10:80 -r 10.244.0.1:8080; ipvsadm -a -t 10.96.0.10:80 -r 10.244.0.3:8080 -m; ipvsadm -A -t 10.96.0.77:80 -s rr -b flag-3; " +
			"ipvsadm -e -t 10.96.0.10:80 -r 10.244.0.2:8080 -m -w 0; ipvsadm -e -t 10.96.0.30:80 -r 10.244.0.1:8080 -m -w 1 -x 1; ip addr del 10.96.0.30/32 dev sluice-ipvs0",
		"ipvsadm -D -t 10.96.0.10:80; ip link del sluice-ipvs0",
		"nft delete table ip sluice; echo 0 > /proc/sys/net/ipv4/vs/conntrack; ipvsadm -E -t 10.96.0.10:80 -s wlc",
	} {
		begin := time.Now()
		n.command("", "sh", "-c", script)
		n.until(script, func() string {
			if now := state(); now != whole {
				return "the state is\n" + now + "and was\n" + whole
			}
			return ""
		})
		t.Logf("repaired after %s: %s", time.Since(begin).Round(time.Millisecond), script)
		n.expect(script, "p1 p2")
	}
	n.stop(syscall.SIGTERM)
	if out, err := n.sluice("cleanup"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if now := strings.Replace(state(), "1\n1\n", "0\n0\n", 1); now != theirs {
		t.Errorf("after the cleanup the state is\n%sbefore sluice it was\n%s", now, theirs)
	}
}

// TestIPVSModeIsolatesWhatTheKernelRejects: an invalid endpoint, disabled IPv6, and a virtual server that is excluded. The
// author of an EndpointSlice must not be able to make the proxy of every node restart.
func TestIPVSModeIsolatesWhatTheKernelRejects(t *testing.T) {
	n := newIPVSNode(t)
	n.command("", "sh", "-c", "ip link add pods type dummy; ip link set pods up; ip addr add 10.245.0.1/24 brd + dev pods; "+
		"echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ipvsadm -A -t 10.96.0.31:80 -s rr")
	n.addService("broadcast", "clusterIP: 10.96.0.30, clusterIPs: [10.96.0.30]", "10.245.0.255", "10.244.0.1")
	n.addService("excluded", "clusterIP: 10.96.0.31, clusterIPs: [10.96.0.31]", "10.244.0.1")
	n.addService("dual", "clusterIP: 10.96.0.32, clusterIPs: [10.96.0.32, 'fd00:10:96::32']", "10.244.0.1")
	n.write("dual6.yaml", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dual-2, namespace: shop, labels: {kubernetes.io/service-name: dual}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ['fd00:10:244::1'], conditions: {ready: true}}]
`)
	n.configure("mode: ipvs\nipvs: {excludeCIDRs: [10.96.0.31/32]}\n")
	n.start("--config", n.file)
	n.healthy("after the start")
	for _, why := range []string{"add real server 10.245.0.255:8080", "10.96.0.31/32 of ipvs.excludeCIDRs", "IPv6 is disabled"} {
		n.logs(why)
	}
	ask := func(at, want string) {
		t.Helper()
		n.until(at, func() string {
			if a, err := n.client.Ask("tcp", netip.MustParseAddrPort(at), time.Minute); err != nil || a.Server != want {
				return fmt.Sprintf("%q answers: %v", a.Server, err)
			}
			return ""
		})
	}
	n.expect("another Service", "p1 p2")
	ask("10.96.0.30:80", "p1")
	ask("10.96.0.32:80", "p1")
	n.addService("broadcast", "clusterIP: 10.96.0.30, clusterIPs: [10.96.0.30]", "10.245.0.255", "10.244.0.3")
	ask("10.96.0.30:80", "p3") // its other endpoints can change
	n.endpoints(3)
	n.expect("another Service changes", "p3")
	n.healthy("after a while")
	if servers := n.command("", "ipvsadm", "-Sn"); !strings.Contains(servers, "-A -t 10.96.0.31:80 -s rr\n") {
		t.Errorf("what is excluded was touched:\n%s", servers)
	}
	// The obstacles disappear.
	n.command("", "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ipvsadm -D -t 10.96.0.31:80")
	ask("10.96.0.31:80", "p1")
	n.until("IPv6", func() string {
		if addrs := n.command("", "ip", "-o", "addr", "show", "sluice-ipvs0"); !strings.Contains(addrs, "fd00:10:96::32/128") {
			return addrs
		}
		return ""
	})
}

// TestFailedModeSwitchKeepsTheCurrentMode switches the mode while one virtual server cannot be created.
func TestFailedModeSwitchKeepsTheCurrentMode(t *testing.T) {
	n := newIPVSNode(t)
	n.command("", "ipvsadm", "-A", "-t", vip.String(), "-s", "rr")
	n.configure("mode: nftables\n")
	n.run("--config", n.file)
	n.expect("in mode nftables", "p1 p2")
	load := n.load(2)
	n.configure("mode: ipvs\nipvs: {excludeCIDRs: [10.96.0.0/24]}\n")
	n.logs("switching the backend failed")
	n.configure("mode: ipvs\nipvs: {interface: no-such}\n")
	n.logs("no link no-such")
	n.endpoints(2, 3)
	n.expect("still in mode nftables", "p2 p3")
	if log := n.log.String(); strings.Contains(log, "replacing nftables table") {
		t.Errorf("the tables that forward were replaced meanwhile:\n%s", log)
	}
	n.configure("mode: ipvs\n") // now the virtual server may be taken over
	n.logs("from=nftables to=ipvs")
	n.endpoints(1, 2)
	n.expect("in mode ipvs", "p1 p2")
	load.stop(50)
	n.healthy("in mode ipvs")
}

// TestReplyInProgressSurvivesModeSwitch: IPVS does not count a half-closed connection as active, however long the
// reply is.
func TestReplyInProgressSurvivesModeSwitch(t *testing.T) {
	n := newIPVSNode(t)
	n.configure("mode: ipvs\n")
	n.run("--config", n.file)
	n.expect("in mode ipvs", "p1 p2")
	c, err := n.client.Dial(context.Background(), "tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * timeout))
	_ = c.(*net.TCPConn).SetReadBuffer(4096) // most of the reply stays at the server
	question := bytes.Repeat([]byte("?"), 128<<10)
	if _, err := c.Write(question); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	n.until("half-closed", func() string {
		if conns := n.command("", "ipvsadm", "-Lnc"); !strings.Contains(conns, "CLOSE_WAIT") && !strings.Contains(conns, "FIN_WAIT") {
			return conns
		}
		return ""
	})
	n.configure("mode: nftables\n")
	n.logs("from=ipvs to=nftables")
	n.logs("draining virtual servers of the previous mode")
	n.endpoints(3)
	n.expect("in mode nftables", "p3")
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.HasSuffix(answer, question) {
		t.Errorf("%d bytes of the answer, then: %v", len(answer), err)
	}
}

// TestKillDuringModeSwitchLosesAndLeavesNothing: p2 is always an endpoint.
func TestKillDuringModeSwitchLosesAndLeavesNothing(t *testing.T) {
	n := newIPVSNode(t)
	for i := range 20 {
		n.addService(fmt.Sprint("more", i), fmt.Sprintf("clusterIP: 10.96.1.%[1]d, clusterIPs: [10.96.1.%[1]d]", i+1), "10.244.0.1", "10.244.0.3")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mode := map[string]string{"ipvs": "nftables", "nftables": "ipvs"}
	now := "ipvs"
	n.configure("mode: ipvs\n")
	n.run("--config", n.file)
	n.expect("running", "p1 p2")
	alive := n.holdOpen()
	load := n.load(1)
	rounds := 6
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		now = mode[now]
		n.configure("mode: " + now + "\n")
		n.endpoints(2, 1+2*rng.IntN(2))
		time.Sleep(time.Duration(50+rng.IntN(250)) * time.Millisecond) // pace of changes
		n.stop(syscall.SIGKILL)
		if rng.IntN(2) == 0 {
			now = mode[now]
			n.configure("mode: " + now + "\n")
		}
		n.run("--config", n.file)
	}
	if err := alive(); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
	load.stop(20)
	n.endpoints(2, 3)
	n.expect("after it all", "p2 p3")
	n.configure("mode: " + mode[now] + "\n")
	time.Sleep(time.Duration(50+rng.IntN(250)) * time.Millisecond) // pace of changes
	n.stop(syscall.SIGKILL)
	if out, err := n.sluice("cleanup"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left := n.command("", "sh", "-c", "nft list ruleset; ipvsadm -Sn; ip -o addr | grep 10.96 || true; ip -o link | grep sluice || true"); left != "" {
		t.Errorf("left:\n%s", left)
	}
}
