package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

const quiet = "metricsBindAddress: ''\nhealthzBindAddress: ''\n"

// TestLocalhostNodePorts connects from the node to a NodePort at loopback addresses, while an endpoint leaves.
func TestLocalhostNodePorts(t *testing.T) {
	n := newNode(t)
	n.write("service.yaml", `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80, nodePort: 30080}]}
`)
	n.run("--config", n.configured(quiet+"nodePortAddresses: [192.168.0.0/24, localhost]\n"))
	localhost, address := netip.MustParseAddrPort("127.0.0.1:30080"), netip.MustParseAddrPort("192.168.0.1:30080")
	// from waits until forty connections in a row are answered by these Pods.
	from := func(what string, h *testnet.Host, to netip.AddrPort, want string) {
		t.Helper()
		n.until(what, func() bool {
			seen := map[string]bool{}
			for range 40 {
				a, err := h.Ask("tcp", to, testnet.AnswerTimeout)
				if err != nil {
					return false
				}
				seen[a.Server] = true
				if h == n.lab.Node && a.Client.Addr() != address.Addr() {
					t.Fatalf("%s: the endpoint sees the client %s", what, a.Client)
				}
			}
			for i := 1; i <= 3; i++ {
				if name := fmt.Sprint("p", i); seen[name] != strings.Contains(want, name) {
					return false
				}
			}
			return true
		})
	}
	from("localhost", n.lab.Node, localhost, "p1 p2")
	from("address of the node", n.client, address, "p1 p2")
	for _, other := range []string{"127.0.0.2:30080", "127.0.0.1:30081"} {
		if _, err := n.lab.Node.Ask("tcp", netip.MustParseAddrPort(other), testnet.AnswerTimeout); !testnet.Refused(err) {
			t.Errorf("%s: %v, want it refused", other, err)
		}
	}

	c, err := n.lab.Node.Dial(t.Context(), "tcp", localhost)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := testnet.Greeting(c); err != nil {
		t.Fatal(err)
	}
	n.endpoints(3)
	from("after a change", n.lab.Node, localhost, "p3")
	_ = c.SetDeadline(time.Now().Add(testnet.AnswerTimeout))
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("an open connection after a change: %v", err)
	}

	out, err := n.sluice("trace", "--socket", n.socket(), "--from", "127.0.0.1", "--to", localhost.String())
	if err != nil || !strings.Contains(out, "sluice itself accepts the connection") || !strings.Contains(out, "10.244.0.3:8080") {
		t.Errorf("trace: %v\n%s", err, out)
	}
	n.endpoints()
	n.until("no endpoint", func() bool {
		_, err := n.lab.Node.Ask("tcp", localhost, testnet.AnswerTimeout)
		return testnet.Refused(err)
	})
}

// TestUDPFlowsToATerminatingEndpoint follows a flow while its endpoint terminates and goes, with and without the annotations that
// keep it.
func TestUDPFlowsToATerminatingEndpoint(t *testing.T) {
	n := newNode(t)
	for _, p := range n.pods {
		s, err := p.Serve("udp", netip.AddrPortFrom(p.Addrs[0], 5060), p.Name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
	}
	service := func(name, ip, annotations string) {
		n.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop, annotations: {%s}}
spec: {clusterIP: %[3]s, clusterIPs: [%[3]s], ports: [{name: sip, port: 5060, protocol: UDP}]}
`, name, annotations, ip))
	}
	// endpoints sets those of the Services: p1, unless it is gone, and p2 if it is ready.
	endpoints := func(p1, p2 string) {
		for _, name := range []string{"moved", "kept", "preserved"} {
			text := fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: sip, port: 5060, protocol: UDP}]
endpoints:
`, name)
			if p1 != "" {
				text += "- {addresses: [10.244.0.1], conditions: {" + p1 + "}}\n"
			}
			n.write(name+"-slice.yaml", text+"- {addresses: [10.244.0.2], conditions: {"+p2+"}}\n")
		}
	}
	service("moved", "10.96.0.11", "")
	service("kept", "10.96.0.12", "sluice.dev/udp-drain: keep")
	service("preserved", "10.96.0.13", "service.kubernetes.io/udp-connection-handling: PreserveDuringTermination")
	endpoints("ready: true", "ready: false")
	n.run("--config", n.configured(quiet))

	flow := func(ip string) (server func() string) {
		c, err := n.client.Dial(context.Background(), "udp", netip.AddrPortFrom(netip.MustParseAddr(ip), 5060))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return func() string { return n.who(c) }
	}
	moved, kept, preserved := flow("10.96.0.11"), flow("10.96.0.12"), flow("10.96.0.13")
	n.until("all flows", func() bool { return moved() == "p1" && kept() == "p1" && preserved() == "p1" })
	endpoints("ready: false, serving: false, terminating: true", "ready: true")
	n.until("the flow that moves", func() bool { return moved() == "p2" })
	n.until("new flows of the other Service", func() bool {
		a, err := n.client.Ask("udp", netip.MustParseAddrPort("10.96.0.12:5060"), testnet.AnswerTimeout)
		return err == nil && a.Server == "p2"
	})
	for range 20 {
		if got, other := kept(), preserved(); got != "p1" || other != "p1" {
			t.Fatalf("the flows that are kept meet %q and %q", got, other)
		}
	}
	endpoints("", "ready: true")
	n.until("the flows that were kept", func() bool { return kept() == "p2" && preserved() == "p2" })
}

// who asks who answers a UDP flow, each second until it is answered.
func (n *node) who(c net.Conn) (answer string) {
	for range int(testnet.AnswerTimeout / time.Second) {
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, err := c.Write([]byte("who?"))
		if err == nil {
			var a testnet.Answer
			if a, err = testnet.Greeting(c); err == nil {
				return a.Server
			}
		}
		answer = err.Error()
	}
	return answer
}
