package nodes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/load"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// drain is how long the servers go on after SIGTERM.
const drain = 5 * time.Second

// timeout is how long a client waits, for a connection and for each answer. Beside other tests, a process gets no processor for
// seconds; so do Pods without a request of CPU time.
const timeout = 15 * time.Second

const nodePort, healthPort = 30080, 31999

// web is a Deployment with two Services, and a Pod for each kind of client.
var web = fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "%[1]s", args: [serve, -drain, %[2]s], resources: {requests: {cpu: 200m}}, readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: %[3]d}]}
---
apiVersion: v1
kind: Service
metadata: {name: local, namespace: web}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: %[4]d, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`, programs.Load, drain, nodePort, healthPort)

// serve starts the Deployment.
func (c *cluster) serve() {
	c.Helper()
	c.must(c.Apply(c.Context(), web))
	c.kubectl("-n", "web", "rollout", "status", "deployment", "web", "--timeout=180s")
}

// client is the Pod of a client that runs until it is deleted.
const client = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: web}
spec:
  nodeName: %s
  restartPolicy: Never
  terminationGracePeriodSeconds: 30
  containers: [{name: load, image: "` + programs.Load + `", args: [%s, -timeout, %s, %s], resources: {requests: {cpu: 200m}}}]
`

// clientNode is where the Pods of clients are. Their names are commands of load.
var clientNode = map[string]string{"connect": "n1", "hold": "n2"}

// traffic is load from a Pod through the cluster IP, new and long connections, and from outside through the NodePorts of all
// workers.
type traffic struct {
	*cluster
	outside *testnet.Program
	result  *bytes.Buffer
}

func (c *cluster) load() *traffic {
	c.Helper()
	vip := strings.TrimSpace(c.kubectl("-n", "web", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")) + ":80"
	for pod, node := range clientNode {
		c.must(c.Apply(c.Context(), fmt.Sprintf(client, pod, node, pod, timeout, vip)))
	}
	c.kubectl("-n", "web", "wait", "--for=condition=Ready", "pod/connect", "pod/hold", "--timeout=60s")
	t := &traffic{cluster: c, result: &bytes.Buffer{}}
	// Its Pods have a request of CPU time; the client outside has a priority instead.
	cmd := exec.Command("nice", "-n", "-10", c.programs.Load, "connect", "-v", "-timeout", timeout.String())
	for _, n := range c.Workers() {
		cmd.Args = append(cmd.Args, fmt.Sprintf("%s:%d", n.Addrs[0], nodePort))
	}
	cmd.Stdout, cmd.Stderr = t.result, &atFailure{cluster: c}
	var err error
	t.outside, err = c.Outside.Start(cmd)
	c.must(err)
	c.Cleanup(t.outside.Kill)
	return t
}

// atFailure is the standard error of a client outside. It logs what the workers know of the connections that are stuck, as soon
// as one has failed.
type atFailure struct {
	*cluster
	once sync.Once
}

// stuck prints connections without an answer, to the NodePort and to its endpoints, IPVS's too, counters, and what Pods have not
// accepted yet.
var stuck = fmt.Sprintf(`date -u +%%T.%%N; grep -E 'UNREPLIED|SYN_(SENT|RECV)' /proc/net/nf_conntrack | grep -E 'dport=(%d|8080) '; `+
	`grep -E 'SYN_(RECV|SENT)' /proc/net/ip_vs_conn; cat /proc/net/stat/nf_conntrack /proc/net/ip_vs_stats /proc/net/netstat; ip neigh; nft list tables; uptime; `+
	`for pod in /run/netns/*; do nsenter --net=$pod sh -c 'ss -tan state syn-recv; ss -tln'; done`, nodePort)

func (f *atFailure) Write(p []byte) (int, error) {
	f.Logf("the client outside: %s", p)
	f.once.Do(func() {
		for _, n := range f.Workers() {
			out, err := n.Exec(f.Context(), "sh", "-c", stuck+" 2>&1")
			f.Logf("%s: %v\n%s", n.Name, err, out)
		}
	})
	return len(p), nil
}

// end ends the load, and returns the servers that each client met. No connection may have failed, and no long one may have been
// broken unless its server ended, as it does if restarted.
func (t *traffic) end(what string, restarted bool) (servers map[string][]string) {
	t.Helper()
	servers = map[string][]string{}
	t.must(t.outside.End(syscall.SIGTERM, time.Minute))
	results := map[string][]byte{"outside": t.result.Bytes()}
	for pod := range clientNode {
		// The Pod stays until its log is read.
		_, err := t.Node(clientNode[pod]).Exec(t.Context(), "pkill", "-TERM", "-f", "^/load "+pod+" ")
		t.must(err)
		t.kubectl("-n", "web", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+pod, "--timeout=60s")
		results[pod] = []byte(t.kubectl("-n", "web", "logs", pod))
		t.kubectl("-n", "web", "delete", "pod", pod, "--now")
	}
	for from, text := range results {
		var r load.Result
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatalf("%s, %s: %v\n%s", what, from, err, text)
		}
		t.Logf("%s, %s: %d connections, failed %v, broken %v, of %d servers, ms: %.1f, p99 %.1f, max %.0f",
			what, from, r.Connections, r.Failed, r.Broken, len(r.Servers), r.Latency.Median, r.Latency.P99, r.Latency.Max)
		if r.Failed.Total() > 0 || r.Broken.Total() > 0 && !restarted || r.Connections == 0 {
			t.Errorf("%s, %s: %q", what, from, r.Errors)
		}
		servers[from] = slices.Collect(maps.Keys(r.Servers))
	}
	return servers
}
