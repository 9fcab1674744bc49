package agent

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestLocalhostNodePortsFollowTheConfiguration checks that listeners open and close with a live change of nodePortAddresses.
func TestLocalhostNodePortsFollowTheConfiguration(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	servers := "healthzBindAddress: ''\nmetricsBindAddress: " + freeAddress(t, 4) + "\n"
	r := newRig(t, servers+"nodePortAddresses: [primary]\n")
	r.write("manifests/web.yaml", fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80, nodePort: %d, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.1], conditions: {ready: true}}]
`, port))
	stop := r.run()
	// No connection is made: the endpoint is not an address of this host.
	used := func(want bool) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprintf("the port is in use: %t", want), func() bool {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err == nil {
				_ = l.Close()
			}
			return errors.Is(err, syscall.EADDRINUSE) == want
		}, r.log.String)
	}
	// The kernel's counters are shown while packets are counted.
	counted := func(want bool) {
		t.Helper()
		const name = `kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family="IPv4",protocol="UDP"} `
		if text := page(t, "http://"+r.opts.Config.MetricsBindAddress+"/metrics", 200); strings.Contains(text, name) != want {
			t.Errorf("%s is shown: %t, want %t", name, !want, want)
		}
	}
	counted(false)
	r.configure(servers + "nodePortAddresses: [primary, localhost]\n")
	used(true)
	counted(true)
	r.configure(servers + "nodePortAddresses: [all]\n")
	used(false)
	counted(false)
	r.configure(servers + "nodePortAddresses: [localhost]\n")
	used(true)
	if err := stop(); err != nil {
		t.Error(err)
	}
	used(false)
}
