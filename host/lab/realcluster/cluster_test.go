package realcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

func TestMain(m *testing.M) {
	Enter()
	if os.Getenv("SLUICE_TEST_REALCLUSTER") == "" {
		os.Exit(m.Run()) // what needs no cluster
	}
	Main(m)
}

// newClusters starts clusters at once that serve web, and are closed when the test ends.
func newClusters(t *testing.T, configs ...Config) []*Cluster {
	t.Helper()
	if os.Getenv("SLUICE_TEST_REALCLUSTER") == "" {
		t.Skip("starts a cluster: make test-realcluster")
	}
	clusters, errs := make([]*Cluster, len(configs)), make([]error, len(configs))
	var all sync.WaitGroup
	for i, config := range configs {
		config.Log, config.Dir = t.Output(), filepath.Join(t.TempDir(), "cluster")
		all.Go(func() {
			if clusters[i], errs[i] = Start(t.Context(), config); errs[i] == nil {
				t.Cleanup(clusters[i].Close)
				errs[i] = clusters[i].serve(t.Context())
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return clusters
}

// web is a DaemonSet and its Service, whose answers are the Pods' names.
const web = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: "` + programs.Busybox + `"
        args: [sh, -c, "hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
`

// serve creates web.
func (c *Cluster) serve(ctx context.Context) error {
	if err := c.Apply(ctx, web); err != nil {
		return err
	}
	return c.Rollout(ctx, "default", "daemonset/web")
}

// ask asks web from outside at a node's address.
func (c *Cluster) ask(ctx context.Context, node netip.Addr) (string, error) {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return c.Outside.Dial(ctx, network, netip.AddrPortFrom(node, 30080))
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 2 * time.Second}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web/", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// answers waits until web answers at every address of all nodes that are on, the control plane's too.
func (c *Cluster) answers(t *testing.T) {
	t.Helper()
	for _, n := range c.Nodes {
		for _, addr := range n.Addrs {
			if n.Host() == nil {
				continue
			}
			err := poll(t.Context(), fmt.Sprintf("an answer at NodePort of %s, %s", n.Name, addr), func() error {
				name, err := c.ask(t.Context(), addr)
				if err == nil && !strings.HasPrefix(name, "web-") {
					err = fmt.Errorf("answer %q", name)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// TestPodsReachAServiceByItsName: Pods of any node reach it by its name, and clients outside at every address of every node.
func TestPodsReachAServiceByItsName(t *testing.T) {
	for _, config := range []Config{
		{Name: "test-v4", Family: IPv4, Workers: 1},
		{Name: "test-v6", Family: IPv6, Workers: 2},
		{Name: "test-dual", Family: Dual, Workers: 6},
	} {
		t.Run(config.Name, func(t *testing.T) {
			c := newClusters(t, config)[0]
			c.answers(t)
			service, err := c.Client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			hosts := []string{"web.default.svc.cluster.local"}
			for _, ip := range service.Spec.ClusterIPs {
				hosts = append(hosts, net.JoinHostPort(ip, "80"))
			}
			if want := len(c.Nodes[0].Addrs) + 1; len(hosts) != want {
				t.Errorf("cluster IPs %v, want %d", service.Spec.ClusterIPs, want-1)
			}
			pods, err := c.Kubectl(t.Context(), "", "get", "pods", "-l", "app=web", "-o", "name")
			if err != nil {
				t.Fatal(err)
			}
			for pod := range strings.FieldsSeq(pods) {
				for _, host := range hosts {
					out, err := c.Kubectl(t.Context(), "", "exec", pod, "--", "wget", "-qO-", "http://"+host)
					if err != nil || !strings.HasPrefix(out, "web-") {
						t.Errorf("%s asks %s: %q, %v", pod, host, out, err)
					}
				}
			}
		})
	}
}
