package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestNodePortsOutlastTheNodeAndRestarts: the Node object is deleted by mistake, sluice restarts and is killed, and the Node
// comes back in another zone.
func TestNodePortsOutlastTheNodeAndRestarts(t *testing.T) {
	n := newNode(t)
	outside, err := n.lab.AddHost("outside", netip.MustParseAddr("198.51.100.9"))
	if err != nil {
		t.Fatal(err)
	}
	n.write("service.yaml", `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80, nodePort: 30080}]}
`)
	node := func(zone string) string {
		return "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/zone: " + zone + "}}\n" +
			"spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n"
	}
	n.write("node.yaml", node("a"))
	config := n.configured(quiet + "detectLocalMode: NodeCIDR\n")
	forwards := func(when string) {
		t.Helper()
		a, err := outside.Ask("tcp", netip.MustParseAddrPort("192.168.0.1:30080"), testnet.AnswerTimeout)
		if err != nil {
			t.Errorf("%s: the NodePort: %v", when, err)
		} else if a.Client.Addr() == outside.Addrs[0] {
			t.Errorf("%s: not masqueraded", when)
		}
		if a, err = n.client.Ask("tcp", vip, testnet.AnswerTimeout); err != nil || a.Client.Addr() != n.client.Addrs[0] {
			t.Errorf("%s: a Pod at the ClusterIP: seen as %v, %v; it counts as outside", when, a.Client, err)
		}
	}
	says := func(when string, want bool, zone string) {
		t.Helper()
		const lost = "Node n1: not found: what was last known stays in force: addresses 192.168.0.1, podCIDRs 10.244.0.0/24, zone a"
		for _, command := range [][]string{{"status"}, {"explain", "-n", "shop", "web"}} {
			var out string
			testenv.Eventually(t, fmt.Sprintf("%s: %v", when, command), func() bool {
				out, _ = n.sluice(append(command, "--socket", n.socket())...)
				return strings.Contains(out, lost) == want && strings.Contains(out, "n1, zone "+zone)
			}, func() string { return out })
		}
	}
	n.run("--config", config)
	forwards("running")
	says("running", false, "a")
	if err := os.Remove(filepath.Join(n.dir, "node.yaml")); err != nil {
		t.Fatal(err)
	}
	n.logs("what was last known stays in force")
	forwards("without its Node")
	says("without its Node", true, "a")
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = n.stop(signal)
		n.run("--config", config)
		forwards("after a restart")
		says("after a restart", true, "a")
	}
	n.write("node.yaml", node("b"))
	says("with its Node", false, "b")
	forwards("with its Node")
}
