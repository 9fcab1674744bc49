package soak

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

const (
	churnServices   = 100
	hostileServices = 20 // in the namespace of each misbehavior
)

// cluster writes the manifests that sluice watches, a file for each Service.
type cluster struct {
	dir   string
	turn  int // of change
	abuse int // of disturb
}

// Addresses of the Services.
var (
	steadyAddr = netip.MustParseAddrPort("10.96.0.1:80")
	toggleAddr = netip.MustParseAddrPort("10.96.0.2:80")
)

func newCluster(dir string) (*cluster, error) {
	c := &cluster{dir: dir}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {topology.kubernetes.io/zone: zone-1}}\n" +
		"spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n"
	if err := replaceFile(filepath.Join(dir, "node.yaml"), node); err != nil {
		return nil, err
	}
	if err := c.write("shop", "steady", steadyAddr.Addr(), 1, 2, 3, 4); err != nil {
		return nil, err
	}
	if err := c.toggle(1); err != nil {
		return nil, err
	}
	for i := range churnServices {
		if err := c.change(i); err != nil {
			return nil, err
		}
	}
	for k, namespace := range misbehaviors {
		for i := range hostileServices {
			if err := c.write(namespace, fmt.Sprint("svc-", i), netip.AddrFrom4([4]byte{10, 97, byte(k), byte(i)}), 1, 2, 3, 4); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// toggle makes a Pod the only endpoint of the Service whose updates are measured. It has no policy.
func (c *cluster) toggle(pod int) error { return c.write("plain", "toggle", toggleAddr.Addr(), pod) }

// change changes the endpoints of a churning Service.
func (c *cluster) change(i int) error {
	c.turn++
	i %= churnServices
	return c.write("churn", fmt.Sprint("svc-", i), netip.AddrFrom4([4]byte{10, 98, 0, byte(i)}), 1+c.turn%pods, 1+(c.turn+1)%pods)
}

// poke changes a Service of each hostile namespace, so that its plugin is called.
func (c *cluster) poke(i int) error {
	c.turn++
	for k, namespace := range misbehaviors {
		at := netip.AddrFrom4([4]byte{10, 97, byte(k), byte(i % hostileServices)})
		if err := c.write(namespace, fmt.Sprint("svc-", i%hostileServices), at, 1+c.turn%pods, 1+(c.turn+1)%pods); err != nil {
			return err
		}
	}
	return nil
}

// disturb replaces what the hostile tenant had with the next abuse.
func (c *cluster) disturb() error {
	abuses := []func() []string{manyFrontends, contestedPorts, manyEndpoints, longNames, forgedNames, stolenAddresses}
	files := abuses[c.abuse%len(abuses)]()
	c.abuse++
	old, err := filepath.Glob(filepath.Join(c.dir, "tenant-*.json"))
	if err != nil {
		return err
	}
	for i, text := range files {
		if err := replaceFile(filepath.Join(c.dir, fmt.Sprintf("tenant-%02d.json", i)), text); err != nil {
			return err
		}
	}
	for _, path := range old[min(len(files), len(old)):] { // in the order of their numbers
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) write(namespace, name string, clusterIP netip.Addr, endpoints ...int) error {
	var list []string
	for _, p := range endpoints {
		list = append(list, fmt.Sprintf(`{"addresses": [%q], "conditions": {"ready": true}, "nodeName": "node-1", "zone": "zone-%d"}`, podAddr(p), 1+p%2))
	}
	return replaceFile(filepath.Join(c.dir, namespace+"-"+name+".json"), asList(
		service(namespace, name, clusterIP.String(), "", `{"name": "http", "port": 80, "protocol": "TCP"}`), slice(namespace, name, name+"-1", list)))
}

// asList returns a file with objects in JSON.
func asList(objects ...string) string {
	return `{"apiVersion": "v1", "kind": "List", "items": [` + strings.Join(objects, ",\n") + "]}\n"
}

// service returns a Service. fields are more fields of its spec, each with a comma at its end.
func service(namespace, name, clusterIP, fields string, ports ...string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": %q, "name": %q}, "spec": {"type": "ClusterIP", `+
		`"clusterIP": %q, "clusterIPs": [%[3]q], "ipFamilies": ["IPv4"], %s"ports": [%s]}}`, namespace, name, clusterIP, fields, strings.Join(ports, ", "))
}

func slice(namespace, service, name string, endpoints []string) string {
	return fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"namespace": %q, "name": %q, "labels": `+
		`{"kubernetes.io/service-name": %q}}, "addressType": "IPv4", "ports": [{"name": "http", "port": %d, "protocol": "TCP"}], "endpoints": [%s]}`,
		namespace, name, service, podPort, strings.Join(endpoints, ",\n"))
}
