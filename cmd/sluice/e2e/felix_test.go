package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// calico is a node with Calico's Felix and its datastore, etcd. The Pods are workload endpoints.
type calico struct {
	*neighbor
	etcd http.Client
}

// newCalico runs the commands on the node before sluice.
func newCalico(t *testing.T, config string, commands ...string) *calico {
	t.Helper()
	c := &calico{neighbor: newNeighbor(t, config, commands...)}
	c.etcd.Transport = &http.Transport{DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		return c.lab.Node.Dial(ctx, network, netip.MustParseAddrPort(to))
	}}
	c.etc("hosts", "127.0.0.1 localhost\n")
	c.daemon(answers("2379/health", "true"), "etcd", "--data-dir", "/var/etcd", "--log-level", "warn", "--unsafe-no-fsync")
	c.put("clusterinformations/default", "ClusterInformation", nil, `{"datastoreReady": true}`)
	c.put("nodes/n1", "Node", nil, `{"bgp": {"ipv4Address": "192.168.0.1/32"}}`)
	c.put("profiles/kns.shop", "Profile", nil, `{"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}`)
	for name, app := range map[string]string{"p1": "web", "p2": "web", "p3": "web", "client": "client"} {
		host := c.pods[name]
		if host == nil {
			host = c.client
		}
		labels := map[string]string{"app": app, "projectcalico.org/namespace": "shop", "projectcalico.org/orchestrator": "k8s"}
		c.put("workloadendpoints/shop/n1-k8s-"+name+"-eth0", "WorkloadEndpoint", labels, fmt.Sprintf(`{"orchestrator": "k8s", "node": "n1", "pod": %[1]q,
			"endpoint": "eth0", "containerID": %[1]q, "interfaceName": "v-%[1]s", "ipNetworks": ["%[2]s/32"], "profiles": ["kns.shop"]}`, name, host.Addrs[0]))
	}
	return c
}

// answers is a command that succeeds if HTTP on the node's loopback address answers with a text.
func answers(at, text string) []string {
	port, path, _ := strings.Cut(at, "/")
	return []string{"bash", "-c", fmt.Sprintf(`exec 3<>/dev/tcp/127.0.0.1/%s && printf 'GET /%s HTTP/1.0\r\n\r\n' >&3 && grep -q '%s' <&3`, port, path, text)}
}

// start starts Felix and waits until it has written its rules.
func (c *calico) start() {
	c.Helper()
	c.daemon(answers("9099/readiness", "^HTTP/1.[01] 20"), "env", "DATASTORE_TYPE=etcdv3", "ETCD_ENDPOINTS=http://127.0.0.1:2379",
		"FELIX_FELIXHOSTNAME=n1", "FELIX_INTERFACEPREFIX=v-p,v-client", "FELIX_DEVICEROUTESOURCEADDRESS=192.168.0.1", "FELIX_HEALTHENABLED=true",
		"FELIX_IPTABLESBACKEND=NFT", "FELIX_LOGFILEPATH=none", "FELIX_LOGSEVERITYSYS=none", "FELIX_LOGSEVERITYSCREEN=warning",
		"FELIX_USAGEREPORTINGENABLED=false", "FELIX_XDPENABLED=false", "calico-felix")
}

// put writes a resource of Calico's API, as calicoctl does.
func (c *calico) put(name, kind string, labels map[string]string, spec string) {
	c.Helper()
	parts := strings.Split(name, "/")
	meta := map[string]any{"name": parts[len(parts)-1], "labels": labels}
	if len(parts) == 3 {
		meta["namespace"] = parts[1]
	}
	value, err := json.Marshal(map[string]any{"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": meta, "spec": json.RawMessage(spec)})
	if err != nil {
		c.Fatal(err)
	}
	c.request("put", map[string][]byte{"key": []byte("/calico/resources/v3/projectcalico.org/" + name), "value": value})
}

func (c *calico) remove(name string) {
	c.Helper()
	c.request("deleterange", map[string][]byte{"key": []byte("/calico/resources/v3/projectcalico.org/" + name)})
}

func (c *calico) request(verb string, body map[string][]byte) {
	c.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.Fatal(err)
	}
	resp, err := c.etcd.Post("http://127.0.0.1:2379/v3/kv/"+verb, "application/json", bytes.NewReader(text))
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	if out, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		c.Fatalf("etcd: %s %s: %s %s", verb, body["key"], resp.Status, out)
	}
}

// enforces waits until a connection from outside to the NodePort works, or does not, and then tries all flows.
func (c *calico) enforces(when string, outside bool, blocked ...string) {
	c.Helper()
	c.until(when, func() bool {
		_, err := c.outside.Ask("tcp", netip.MustParseAddrPort("192.168.0.1:30080"), 2*time.Second)
		return (err == nil) == outside
	})
	c.expectFlows(when, blocked...)
}

// rules are those of Felix, without counters, and those of sluice.
func (c *calico) rules() (felix, sluice string) {
	c.Helper()
	for line := range strings.Lines(c.must("iptables-save")) {
		if strings.HasPrefix(line, "-A") {
			felix += line
		}
	}
	sluice, _ = c.lab.Node.Run("", "nft", "--stateless", "list", "table", "ip", "sluice")
	return felix, sluice
}

// TestBesideFelix has policies of Calico for Pods, which see what sluice has translated, and for an interface of the node
// before sluice translates.
func TestBesideFelix(t *testing.T) {
	var c *calico
	if ipvsMode() { // Felix knows by the interface
		c = newCalico(t, "ipvs: {interface: kube-ipvs0}\n", "ip link add kube-ipvs0 type dummy")
	} else {
		c = newCalico(t, "")
	}
	_, before := c.rules()
	c.start()
	c.enforces("without policy", true)
	if felix, after := c.rules(); !strings.Contains(felix, "cali-tw-v-p1") || strings.Contains(felix, "cali-forward-endpoint-mark") != ipvsMode() || after != before {
		t.Errorf("Felix has started:\n%s\nsluice's rules:\n%s\nbefore:\n%s", felix, after, before)
	}

	policy := func(ingress string) {
		c.put("networkpolicies/shop/default.web", "NetworkPolicy", nil, `{"selector": "app == 'web'", "types": ["Ingress"], "ingress": [`+ingress+`]}`)
	}
	const clients, outside = `{"action": "Allow", "protocol": "TCP", "source": {"selector": "app == 'client'"}, "destination": {"ports": [8080]}}`,
		`{"action": "Allow", "protocol": "TCP", "source": {"nets": ["198.51.100.9/32"]}, "destination": {"ports": [8080]}}`
	policy(outside)
	c.until("clients are denied", func() bool {
		_, err := c.client.Ask("tcp", vip, 2*time.Second)
		return err != nil
	})
	c.enforces("only outside is allowed", true, "Pod to")
	policy(clients)
	c.enforces("only clients are allowed", false, "outside to")
	c.remove("networkpolicies/shop/default.web")
	c.enforces("the policy is removed", true)

	// With preDNAT, a policy sees the Service's address and port.
	c.put("hostendpoints/n1-outside", "HostEndpoint", map[string]string{"side": "outside"}, `{"node": "n1", "interfaceName": "v-outside", "profiles": ["kns.shop"]}`)
	c.put("globalnetworkpolicies/default.nodeports", "GlobalNetworkPolicy", nil, `{"selector": "side == 'outside'", "order": 1, "types": ["Ingress"],
		"preDNAT": true, "applyOnForward": true, "ingress": [{"action": "Deny", "protocol": "TCP", "destination": {"ports": ["30000:32767"]}}]}`)
	c.enforces("NodePorts are denied", false, "outside to NodePort")
	c.remove("globalnetworkpolicies/default.nodeports")
	c.enforces("NodePorts are allowed", true)

	felix, _ := c.rules()
	if err := c.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if out, err := c.sluice("cleanup"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if after, _ := c.rules(); after != felix {
		t.Errorf("sluice is gone, and so are rules of Felix:\n%s\nbefore:\n%s", after, felix)
	}
}

// TestBesideFelixWithoutKubeIPVS0: Felix takes Pods' packets to Services for packets to the node.
func TestBesideFelixWithoutKubeIPVS0(t *testing.T) {
	if !ipvsMode() {
		t.Skip("mode ipvs only")
	}
	c := newCalico(t, "")
	c.start()
	c.until("Felix denies connections", func() bool {
		_, err := c.client.Ask("tcp", vip, 2*time.Second)
		return err != nil
	})
	c.expectFlows("Felix does not know of IPVS", podToService...)
}
