package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// version writes a Service with the endpoint of one Pod.
func (n *node) version(name string, pod int) {
	n.Helper()
	n.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {clusterIP: 10.96.0.1%[2]d, clusterIPs: [10.96.0.1%[2]d], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.%[2]d], conditions: {ready: true}}]
`, name, pod))
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
	n.version("web-v1", 1)
	n.version("web-v2", 2)
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
