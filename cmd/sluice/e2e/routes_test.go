package e2e

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// backend writes a Service with the endpoints of Pods.
func (n *node) backend(name, clusterIP, protocol string, port, target int, pods ...int) {
	n.Helper()
	var endpoints []string
	for _, p := range pods {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [10.244.0.%d], conditions: {ready: true}}", p))
	}
	n.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {clusterIP: %[2]s, clusterIPs: [%[2]s], ports: [{name: p, port: %[4]d, protocol: %[3]s}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: p, port: %[5]d, protocol: %[3]s}]
endpoints: [%[6]s]
`, name, clusterIP, protocol, port, target, strings.Join(endpoints, ", ")))
}

// split writes the route of web, and waits until it is in the kernel.
func (n *node) split(first string, one int, second string, two int) {
	n.Helper()
	n.write("route.yaml", fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: %s, port: 80, weight: %d}, {name: %s, port: 80, weight: %d}]}]
`, first, one, second, two))
	var out string
	testenv.Eventually(n, fmt.Sprintf("%s %d, %s %d", first, one, second, two), func() bool {
		out, _ = n.sluice("explain", "-n", "shop", "web", "--socket", n.socket())
		return strings.Contains(out, fmt.Sprintf("%s:80 weight %d,", first, one)) && strings.Contains(out, fmt.Sprintf("%s:80 weight %d,", second, two))
	}, func() string { return out }, n.log.String)
	n.expectKernel(two > 0 && second != "gone", "10.244.0.2:8080")
}

// expectKernel waits until the kernel has an endpoint of web, or not.
func (n *node) expectKernel(has bool, endpoint string) {
	n.Helper()
	var out string
	testenv.Eventually(n, endpoint+" in the kernel", func() bool {
		out, _ = n.lab.Node.Run("", "nft", "list", "map", "ip", "sluice", "slots")
		return strings.Contains(out, "10.96.0.10 . tcp . 80 .") && has == slotOf(out, "10.96.0.10", endpoint)
	}, func() string { return out })
}

// slotOf reports whether a frontend has a slot of an endpoint in the listing of nft.
func slotOf(listing, frontend, endpoint string) bool {
	to := strings.Replace(endpoint, ":", " . ", 1)
	for e := range strings.SplitSeq(listing, ",") {
		if strings.Contains(e, frontend+" . ") && strings.Contains(e, ": "+to) {
			return true
		}
	}
	return false
}

// TestCanaryByRouteLosesNoConnection moves connections from one version to the next by the weights of a TCPRoute, while clients
// connect: none fails, the shares are those of the weights, and an established connection stays.
func TestCanaryByRouteLosesNoConnection(t *testing.T) {
	if os.Getenv("SLUICE_MODE") == "ipvs" {
		t.Skip("the slots of nftables are looked at")
	}
	testenv.RequireProgram(t, "nft", "nftables")
	const connections = 400
	n := newNode(t)
	n.endpoints(3) // web's own, which the route leaves out
	n.backend("web-v1", "10.96.0.11", "TCP", 80, 8080, 1)
	n.backend("web-v2", "10.96.0.12", "TCP", 80, 8080, 2)
	n.run()
	n.expect("without a route", "p3")
	alive := n.holdOpen()
	n.split("web-v1", 100, "web-v2", 0)
	old := n.holdOpen()
	load := n.load(2)
	for _, percent := range []int{0, 10, 50, 100} {
		n.split("web-v1", 100-percent, "web-v2", percent)
		seen := map[string]int{}
		for range connections {
			a, err := n.client.Ask("tcp", vip, testnet.AnswerTimeout)
			if err != nil {
				t.Fatalf("%d %%: %v", percent, err)
			}
			seen[a.Server]++
		}
		share := float64(percent) / 100
		if off := math.Abs(float64(seen["p2"]) - connections*share); off > 5*math.Sqrt(connections*share*(1-share)) || seen["p1"]+seen["p2"] != connections {
			t.Errorf("%d %%: %v", percent, seen)
		}
		t.Logf("%d %%: %v", percent, seen)
	}
	t.Logf("%d other connections, none failed", load.stop(500))
	for what, check := range map[string]func() error{"before the route": alive, "to the first version": old} {
		if err := check(); err != nil {
			t.Errorf("the connection from %s: %v", what, err)
		}
	}
	// The share of a backend that does not exist is refused.
	n.split("web-v1", 50, "gone", 50)
	refused := 0
	for range connections {
		if _, err := n.client.Ask("tcp", vip, testnet.AnswerTimeout); testnet.Refused(err) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if math.Abs(float64(refused)-connections/2) > 5*math.Sqrt(connections/4) {
		t.Errorf("%d of %d connections were refused", refused, connections)
	}
	if err := os.Remove(filepath.Join(n.dir, "route.yaml")); err != nil {
		t.Fatal(err)
	}
	n.expect("without the route", "p3")
}

// TestLeastLoadedSeesConnectionsOfRoutes: a backend's policy counts the connections to its endpoints by way of a route too. An
// endpoint that holds twenty of these, and the other none, gets 20 % of the new ones: half of its share, against twice its own.
func TestLeastLoadedSeesConnectionsOfRoutes(t *testing.T) {
	const connections = 400
	n := newNode(t)
	plugins := filepath.Join(filepath.Dir(program), "plugins") // in a test kernel, where nothing can be built
	if os.Getenv("SLUICE_BINARY") == "" {
		plugins = testenv.Plugins(n, "plugins/least-loaded")
	}
	n.backend("web-v1", "10.96.0.11", "TCP", 80, 8080, 1, 3)
	n.run("--config", n.configured(fmt.Sprintf(quiet+`
pluginLimits: {compileTime: 5m}
plugins: [{name: least-loaded, file: %s}]
policies: [{name: even, plugins: [{name: least-loaded, settings: {interval: 2s, smoothingPercent: 50, maxChangePercent: 100, tolerancePercent: 0}}]}]
defaultPolicy: even
`, filepath.Join(plugins, "least-loaded.wasm"))))
	n.logs("loaded plugin")
	n.split("web-v1", 100, "web-v2", 0)
	for held := 0; held < 20; {
		c, err := n.client.Dial(t.Context(), "tcp", vip)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := testnet.Greeting(c); err != nil {
			t.Fatal(err)
		} else if a.Server != "p1" {
			c.Close()
			continue
		}
		defer c.Close()
		held++
	}
	first := func() (met int) {
		for range connections {
			a, err := n.client.Ask("tcp", vip, testnet.AnswerTimeout)
			if err != nil {
				t.Fatal(err)
			}
			if a.Server == "p1" {
				met++
			}
		}
		return met
	}
	met := 0
	testenv.Eventually(t, "20 % of the connections to p1", func() bool {
		met = first()
		return math.Abs(float64(met)-connections*0.2) < 4*math.Sqrt(connections*0.2*0.8)
	}, func() string {
		out, _ := n.sluice("explain", "-n", "shop", "web-v1", "--socket", n.socket())
		return fmt.Sprintf("%d of %d connections met p1\n%s", met, connections, out)
	})
	t.Logf("%d of %d connections met p1", met, connections)
}

// TestCanaryByUDPRoute moves UDP flows by the weights of a UDPRoute: new ones are split as the weights say, and one from before
// stays where it is, also at weight 0.
func TestCanaryByUDPRoute(t *testing.T) {
	const flows = 300
	n := newNode(t)
	for i, p := range []string{"p1", "p2"} {
		s, err := n.pods[p].Serve("udp", netip.AddrPortFrom(n.pods[p].Addrs[0], 5060), p)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		n.backend(fmt.Sprint("sip-v", i+1), fmt.Sprint("10.96.0.3", i+1), "UDP", 5060, 5060, i+1)
	}
	n.write("sip.yaml", `
apiVersion: v1
kind: Service
metadata: {name: sip, namespace: shop}
spec: {clusterIP: 10.96.0.30, clusterIPs: [10.96.0.30], ports: [{name: sip, port: 5060, protocol: UDP}]}
`)
	split := func(one, two int) {
		n.write("route.yaml", fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: sip, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: sip}]
  rules: [{backendRefs: [{name: sip-v1, port: 5060, weight: %d}, {name: sip-v2, port: 5060, weight: %d}]}]
`, one, two))
	}
	sip := netip.MustParseAddrPort("10.96.0.30:5060")
	ask := func() string {
		a, err := n.client.Ask("udp", sip, testnet.AnswerTimeout)
		if err != nil {
			t.Fatal(err)
		}
		return a.Server
	}
	split(1, 0)
	n.run("--config", n.configured(quiet))
	c, err := n.client.Dial(t.Context(), "udp", sip)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n.until("a flow to the first version", func() bool { return n.who(c) == "p1" })
	split(1, 1)
	n.until("a flow to the second version", func() bool { return ask() == "p2" })
	second := 0
	for range flows {
		if ask() == "p2" {
			second++
		}
	}
	if math.Abs(float64(second)-flows/2) > 5*math.Sqrt(flows/4) {
		t.Errorf("%d of %d flows meet the second version", second, flows)
	}
	if got := n.who(c); got != "p1" {
		t.Errorf("the flow from before meets %s", got)
	}
	split(0, 1)
	n.until("ten flows to the second version", func() bool {
		return !slices.ContainsFunc(make([]int, 10), func(int) bool { return ask() != "p2" })
	})
	first := 0
	for range flows {
		if ask() != "p2" {
			first++ // its port is that of a flow from before
		}
	}
	if first > flows/20 {
		t.Errorf("%d of %d new flows meet the version without weight", first, flows)
	}
	if got := n.who(c); got != "p1" {
		t.Errorf("the flow from before meets %s, although its version serves", got)
	}
	t.Logf("%d of %d flows with equal weights, %d of %d with all the weight", second, flows, flows-first, flows)
}
