package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// neighbor is a node beside whose sluice another program runs, from the Debian root that .ci/compat-root has extracted.
// COMPATIBILITY.md has the results.
type neighbor struct {
	*node
	root    string
	private string // the program's /etc, /run, /tmp and /var
	outside *testnet.Host
}

// private directories, and what of the root they begin with.
const enter = `set -e
root=$1 private=$2; shift 2
mount --make-rprivate /
for d in etc var run tmp; do mount --bind "$private/$d" "$root/$d"; done
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t cgroup2 -o ro cgroup2 "$root/sys/fs/cgroup" 2>/dev/null || true
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 HOME=/root "$@"`

// newNeighbor runs the commands on the node before sluice.
func newNeighbor(t *testing.T, config string, commands ...string) *neighbor {
	t.Helper()
	root := os.Getenv("SLUICE_COMPAT_ROOT")
	if root == "" {
		t.Skip("make test-compat runs this")
	}
	n := &neighbor{node: newNode(t), root: root, private: t.TempDir()}
	for _, d := range []string{"etc", "var", "run", "tmp"} {
		if out, err := exec.Command("cp", "-a", filepath.Join(root, d), n.private).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.MkdirAll(filepath.Join(n.private, "run/dbus"), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.outside, err = n.lab.AddHost("outside", netip.MustParseAddr("198.51.100.9")); err != nil {
		t.Fatal(err)
	}
	n.write("service.yaml", `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  externalIPs: [192.168.7.7]
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.80}]}}
`)
	for _, c := range commands {
		n.must(strings.Fields(c)...)
	}
	n.run("--config", n.configured(quiet+"clusterCIDR: 10.244.0.0/16\nnodePortAddresses: [192.168.0.0/16]\n"+config))
	return n
}

func (n *neighbor) command(args ...string) []string {
	return append([]string{"unshare", "--mount", "sh", "-c", enter, "sh", n.root, n.private}, args...)
}

// must runs a program of the root on the node.
func (n *neighbor) must(args ...string) string {
	n.Helper()
	out, err := n.lab.Node.Run("", n.command(args...)...)
	if err != nil {
		n.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// daemon starts a program of the root on the node, and waits until ready succeeds.
func (n *neighbor) daemon(ready []string, args ...string) {
	n.Helper()
	log := &testnet.Log{}
	words := n.command(args...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := n.lab.Node.Start(cmd)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		p.Kill()
		if n.Failed() {
			text := log.String()
			n.Logf("%s:\n%s", args[0], text[max(0, len(text)-4000):])
		}
	})
	testenv.Succeeds(n, args[0], func() error {
		select {
		case <-p.Ended():
			n.Fatalf("%s has ended:\n%s", args[0], log)
		default:
		}
		out, err := n.lab.Node.Run("", n.command(ready...)...)
		if err != nil {
			return fmt.Errorf("%v: %w: %s", ready, err, out)
		}
		return nil
	})
}

func ipvsMode() bool { return os.Getenv("SLUICE_MODE") == "ipvs" }

// flows are the connections that are tried.
var flows = []struct{ name, from, to string }{
	{"Pod to Pod", "client", "10.244.0.3:8080"},
	{"Pod to ClusterIP", "client", "10.96.0.10:80"},
	{"Pod to NodePort", "client", "192.168.0.1:30080"},
	{"Pod to load balancer IP", "client", "192.0.2.80:80"},
	{"node to ClusterIP", "node", "10.96.0.10:80"},
	{"node to NodePort", "node", "192.168.0.1:30080"},
	{"outside to NodePort", "outside", "192.168.0.1:30080"},
	{"outside to load balancer IP", "outside", "192.0.2.80:80"},
	{"outside to external IP", "outside", "192.168.7.7:80"},
}

// expectFlows checks that all flows work but those that begin with a prefix.
func (n *neighbor) expectFlows(when string, blocked ...string) {
	n.Helper()
	hosts := map[string]*testnet.Host{"client": n.client, "node": n.lab.Node, "outside": n.outside}
	for _, f := range flows {
		within, want := testnet.AnswerTimeout, true
		if slices.ContainsFunc(blocked, func(prefix string) bool { return strings.HasPrefix(f.name, prefix) }) {
			within, want = 2*time.Second, false
		}
		if _, err := hosts[f.from].Ask("tcp", netip.MustParseAddrPort(f.to), within); (err == nil) != want {
			n.Errorf("%s: %s: %v, want it to work: %v", when, f.name, err, want)
		}
	}
}

func (n *neighbor) etc(name, text string) {
	n.Helper()
	path := filepath.Join(n.private, "etc", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
}

// asInstalled are the flows that a program drops which drops forwarded packets.
var asInstalled = []string{"Pod to", "outside to"}

// podToService are the flows of Pods that are incoming packets of the node in mode ipvs.
var podToService = []string{"Pod to ClusterIP", "Pod to NodePort", "Pod to load balancer IP"}

func TestBesideFirewalld(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			n := newNeighbor(t, "")
			n.etc("firewalld/firewalld.conf", "DefaultZone=public\nFirewallBackend="+backend+"\nCleanupModulesOnExit=no\n")
			n.daemon([]string{"test", "-S", "/run/dbus/system_bus_socket"}, "dbus-daemon", "--system", "--nofork", "--nopidfile")
			n.daemon([]string{"firewall-cmd", "--state"}, "firewalld", "--nofork", "--nopid")
			// It accepts forwarded packets that are translated. To IPVS, packets are incoming ones.
			installed, trusted := []string{"Pod to Pod"}, []string(nil)
			if ipvsMode() {
				installed, trusted = asInstalled, []string{"outside to"}
			}
			n.expectFlows("as installed", installed...)
			if out, _ := n.sluice("check"); !strings.Contains(out, "FORWARD (hook forward") {
				t.Errorf("sluice check does not name its chains:\n%s", out)
			}
			n.must("firewall-cmd", "--zone=trusted", "--add-source=10.244.0.0/16")
			n.expectFlows("Pods are trusted", trusted...)
			if ipvsMode() {
				n.must("firewall-cmd", "--add-port=80/tcp", "--add-port=30080/tcp")
				n.expectFlows("ports are open")
			}
			n.must("firewall-cmd", "--reload") // writes all rules anew, without what was not permanent
			n.expectFlows("reloaded", installed...)
		})
	}
}

func TestBesideUfw(t *testing.T) {
	n := newNeighbor(t, "")
	n.must("ufw", "--force", "enable")
	n.expectFlows("as installed", asInstalled...)
	n.must("ufw", "default", "allow", "routed")
	if ipvsMode() {
		n.expectFlows("routed packets are allowed", append(podToService, "outside to")...)
		n.must("ufw", "allow", "80/tcp")
		n.must("ufw", "allow", "30080/tcp")
	}
	n.expectFlows("what Services need is allowed")
}

func TestBesideDocker(t *testing.T) {
	for _, forwards := range []string{"0", "1"} {
		t.Run("ip_forward="+forwards, func(t *testing.T) {
			n := newNeighbor(t, "")
			if err := n.lab.Node.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(forwards), 0) }); err != nil {
				t.Fatal(err)
			}
			n.daemon([]string{"docker", "version"}, "dockerd", "--storage-driver", "vfs")
			if forwards == "1" {
				n.expectFlows("Docker has not enabled forwarding")
				return
			}
			n.expectFlows("as installed", asInstalled...)
			n.must("iptables", "-I", "DOCKER-USER", "-s", "10.244.0.0/16", "-j", "ACCEPT")
			n.must("iptables", "-I", "DOCKER-USER", "-d", "10.244.0.0/16", "-j", "ACCEPT")
			n.expectFlows("Pods are accepted")
		})
	}
}

// TestBesideKeepalived has a VIP that is an external IP and gets a NodePort.
func TestBesideKeepalived(t *testing.T) {
	n := newNeighbor(t, "")
	for _, args := range []string{"link add vrrp0 type veth peer name vrrp1", "addr add 10.77.0.1/24 dev vrrp0", "link set vrrp0 up", "link set vrrp1 up"} {
		n.must(append([]string{"ip"}, strings.Fields(args)...)...)
	}
	n.etc("keepalived/keepalived.conf", `
vrrp_instance v {
    state MASTER
    interface vrrp0
    virtual_router_id 51
    priority 100
    virtual_ipaddress { 192.168.7.7/32 }
}
`)
	n.daemon([]string{"sh", "-c", "ip addr show dev vrrp0 | grep -q 192.168.7.7"}, "keepalived", "--dont-fork", "--log-console", "--vrrp")
	n.expectFlows("with the VIP")
	n.until("NodePort at the VIP", func() bool {
		_, err := n.outside.Ask("tcp", netip.MustParseAddrPort("192.168.7.7:30080"), testnet.AnswerTimeout)
		return err == nil
	})
}

// TestBesidePortmap adds hostPorts of Pod p3, one of which is a NodePort as well.
func TestBesidePortmap(t *testing.T) {
	n := newNeighbor(t, "")
	const config = `{"cniVersion": "0.4.0", "name": "net", "type": "portmap",
"runtimeConfig": {"portMappings": [{"hostPort": 8081, "containerPort": 8080, "protocol": "tcp"}, {"hostPort": 30080, "containerPort": 8080, "protocol": "tcp"}]},
"prevResult": {"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/proc/self/ns/net"}], "ips": [{"version": "4", "address": "10.244.0.3/32", "interface": 0}]}}`
	out, err := n.lab.Node.Run(config, n.command("env", "CNI_COMMAND=ADD", "CNI_CONTAINERID=p3", "CNI_NETNS=/proc/self/ns/net", "CNI_IFNAME=eth0",
		"CNI_PATH=/usr/lib/cni", "/usr/lib/cni/portmap")...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.expectFlows("with hostPorts")
	for at, want := range map[string]string{"192.168.0.1:8081": "p3", "192.168.0.1:30080": "p1 p2"} {
		for range 10 {
			if a, err := n.outside.Ask("tcp", netip.MustParseAddrPort(at), testnet.AnswerTimeout); err != nil || !slices.Contains(strings.Fields(want), a.Server) {
				t.Errorf("%s: %q, %v, want %s: the NodePort comes first", at, a.Server, err, want)
			}
		}
	}
}
