package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestUDPFlowsFollowTheirFrontend follows flows from ports that stay the same while frontends come, change hands and go, the last
// of them while sluice does not run. The Service sip has endpoint p1, and other, which is older, p2.
func TestUDPFlowsFollowTheirFrontend(t *testing.T) {
	n := newNode(t)
	for _, p := range n.pods {
		s, err := p.Serve("udp", netip.AddrPortFrom(p.Addrs[0], 5060), p.Name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
	}
	n.write("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n")
	service := func(name string, last int, externalIPs, nodePort string) {
		n.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop, creationTimestamp: "20%[2]d-01-01T00:00:00Z"}
spec: {type: NodePort, clusterIP: 10.96.0.%[2]d, clusterIPs: [10.96.0.%[2]d], externalIPs: [%[3]s], ports: [{name: sip, port: 5060, protocol: UDP%[4]s}]}
`, name, last, externalIPs, nodePort))
	}
	for i, name := range []string{"sip", "other"} {
		n.write(name+"-slice.yaml", fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: sip, port: 5060, protocol: UDP}]
endpoints: [{addresses: [10.244.0.%d], conditions: {ready: true}}]
`, name, i+1))
	}
	const contested = "198.51.100.51"
	service("sip", 22, contested, "")
	service("other", 21, contested, "")
	config := n.configured(quiet)
	n.run("--config", config)

	flow := func(to string) (server func() string) {
		c, err := n.client.Dial(context.Background(), "udp", netip.MustParseAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return func() string { return answerOf(c) }
	}
	node, external, cluster := flow("192.168.0.1:30060"), flow(contested+":5060"), flow("10.96.0.22:5060")
	if got := node(); got != "" {
		t.Fatalf("%s answers at a NodePort that nobody has", got)
	}
	becomes := func(what string, flow func() string, want string) {
		t.Helper()
		n.until(what, func() bool { return flow() == want })
	}
	becomes("the owner's flow", external, "p2")
	becomes("the flow to the cluster IP", cluster, "p1")

	service("sip", 22, contested, ", nodePort: 30060")
	becomes("a flow from before its NodePort", node, "p1")
	service("other", 21, "", "")
	becomes("a flow of the former owner", external, "p1")
	service("other", 21, contested, "")
	becomes("a flow of the owner that returns", external, "p2")
	service("sip", 22, contested, "")
	becomes("a flow to a NodePort that is gone", node, "")

	service("sip", 22, contested, ", nodePort: 30060")
	becomes("a flow to a NodePort that has returned", node, "p1")
	if got := cluster(); got != "p1" {
		t.Errorf("the flow to the cluster IP meets %q", got)
	}
	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	service("sip", 22, "", "")
	service("other", 21, "", "")
	n.run("--config", config)
	becomes("a flow to a NodePort that went meanwhile", node, "")
	becomes("a flow to an external IP that went meanwhile", external, "")
	if got := cluster(); got != "p1" {
		t.Errorf("the flow to the cluster IP meets %q after a restart", got)
	}
}

// answerOf returns who answers a packet of a flow within a second, "" for nobody.
func answerOf(c net.Conn) string {
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("who?")); err != nil {
		return ""
	}
	a, err := testnet.Greeting(c)
	if err != nil {
		return ""
	}
	return a.Server
}
