package agent

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestLocalhostNodePortsFollowTheConfiguration checks that listeners open and close with a live change of nodePortAddresses.
func TestLocalhostNodePortsFollowTheConfiguration(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	_ = free.Close()
	r := newRig(t, "nodePortAddresses: [primary]\n")
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
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err == nil {
				_ = l.Close()
			}
			if errors.Is(err, syscall.EADDRINUSE) == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the port is in use: %t, want %t; %v\n%s", !want, want, err, r.log)
			}
		}
	}
	r.configure("nodePortAddresses: [primary, localhost]\n")
	used(true)
	r.configure("nodePortAddresses: [all]\n")
	used(false)
	r.configure("nodePortAddresses: [localhost]\n")
	used(true)
	if err := stop(); err != nil {
		t.Error(err)
	}
	used(false)
}
