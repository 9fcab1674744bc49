package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestServicesDoNotTakeOtherHostsAway: Services claim the addresses of another Node, an API server, a gateway and a Pod, as
// external IPs and as load balancer IPs. In mode ipvs the node adds the addresses of Services to itself, and still reaches these
// hosts at their other ports.
func TestServicesDoNotTakeOtherHostsAway(t *testing.T) {
	n := newIPVSNode(t)
	if err := n.lab.Node.AddAddr("lo", netip.MustParseAddr("fd00:192::1")); err != nil {
		t.Fatal(err)
	}
	hosts := map[string]*testnet.Host{"Pod": n.pods["p3"]}
	for i, name := range []string{"gateway", "api", "other", "late"} {
		h, err := n.lab.AddHost(name, netip.MustParseAddr(fmt.Sprint("198.51.100.", i+1)), netip.MustParseAddr(fmt.Sprint("2001:db8::", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		hosts[name] = h
	}
	var at []netip.AddrPort
	var ips, ingress []string
	for name, h := range hosts {
		for _, a := range h.Addrs {
			s, err := h.Serve("tcp", netip.AddrPortFrom(a, 7000), name)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			at = append(at, netip.AddrPortFrom(a, 7000))
			ips, ingress = append(ips, fmt.Sprintf("%q", a)), append(ingress, fmt.Sprintf("{ip: %q}", a))
		}
	}
	for _, route := range []string{"-4 route add 192.0.2.0/24 via 198.51.100.1 onlink dev v-gateway", "-6 route add 2001:db8:ffff::/48 via 2001:db8::1 onlink dev v-gateway"} {
		if out, err := n.lab.Node.Run("", append([]string{"ip"}, strings.Fields(route)...)...); err != nil {
			t.Fatalf("ip %s: %v: %s", route, err, out)
		}
	}
	otherNode := func(name string, addrs []netip.Addr) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nstatus: {addresses: [{type: InternalIP, address: %q}, {type: InternalIP, address: %q}]}\n", name, addrs[0], addrs[1])
	}
	n.write("n2.yaml", otherNode("n2", hosts["other"].Addrs))
	for i, family := range []string{"IPv4", "IPv6"} {
		n.write(family+".yaml", fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes-%[1]s, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: %[2]s
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [%[3]q]}]
`, strings.ToLower(family), family, hosts["api"].Addrs[i]))
	}
	service := func(name string, i int, more string) {
		n.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: tenant}
spec: {type: LoadBalancer, clusterIPs: [10.96.1.%[2]d, "fd00:10:96::%[2]d"], clusterIP: 10.96.1.%[2]d, ipFamilies: [IPv4, IPv6], ports: [{name: http, port: 80}]%[3]s
`, name, i, more))
	}
	service("external", 1, ", externalIPs: ["+strings.Join(ips, ", ")+", 203.0.113.7]}")
	service("balancer", 2, "}\nstatus: {loadBalancer: {ingress: ["+strings.Join(ingress, ", ")+", {ip: 203.0.113.8}]}}")
	n.configure("mode: ipvs\nclusterCIDR: 10.244.0.0/16\n")
	reaches := func(when string, except ...netip.Addr) {
		t.Helper()
		for _, a := range at {
			n.until(when, func() string {
				for _, e := range except {
					if a.Addr() == e {
						return ""
					}
				}
				if answer, err := n.lab.Node.Ask("tcp", a, testnet.AnswerTimeout); err != nil || hosts[answer.Server] == nil {
					return fmt.Sprintf("%s: %v, %v", a, answer, err)
				}
				return ""
			})
		}
	}
	reaches("before sluice")
	n.run("--config", n.file)
	n.expect("the ClusterIP", "p1 p2")
	reaches("with sluice", hosts["late"].Addrs...)
	bound := func(want string) func() string {
		return func() string {
			out, err := n.lab.Node.Run("", "ip", "-br", "addr", "show", "dev", "sluice-ipvs0")
			for _, a := range strings.Fields(want) {
				if !strings.Contains(out, a+"/32") {
					return fmt.Sprintf("%s is not on the link: %v\n%s", a, err, out)
				}
			}
			return ""
		}
	}
	n.until("addresses of nobody", bound("203.0.113.7 203.0.113.8"))
	// A Node joins whose address is a Service's already.
	n.write("late.yaml", otherNode("late", hosts["late"].Addrs))
	reaches("with a new Node")
	out, err := n.sluice("explain", "--socket", n.socket(), "-n", "tenant", "external")
	if err != nil || !strings.Contains(out, "belongs to a Node: mode ipvs would add it") {
		t.Errorf("explain: %v\n%s", err, out)
	}
	// What a Node leaves behind is free.
	if err := os.Remove(filepath.Join(n.dir, "late.yaml")); err != nil {
		t.Fatal(err)
	}
	n.until("the Node is gone", bound(hosts["late"].Addrs[0].String()))
}
