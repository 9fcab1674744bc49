package testcluster

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// starter is the environment variable that makes this program start a process, print its ID and wait to be killed.
const starter = "TESTCLUSTER_TEST_STARTER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(starter); dir != "" {
		p := &process{name: "sleep", path: "/bin/sleep", args: []string{"60"}, log: filepath.Join(dir, "log")}
		if err := p.start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.life.PID())
		select {}
	}
	Main(m)
}

func TestProcessesEndWhenTheirParentIsKilled(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), starter+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	must(t, err)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	testenv.Eventually(t, "it ends", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ") // a zombie: this process is not its parent
	})
}

const reader = "system:serviceaccount:default:reader"

// newCluster is a cluster in a namespace of its own.
func newCluster(t *testing.T) *Cluster {
	t.Helper()
	lab, err := testnet.New(netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fd00:18::1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	begin := time.Now()
	c, err := Start(t.Context(), Options{Host: lab.Node, Audit: []string{reader}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.LogOnFailure(t)
	t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
	return c
}

// endpoints are those of a Service as "address state", sorted.
func endpoints(ctx context.Context, c *Cluster, namespace, service string) (out []string, err error) {
	list, err := c.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	on := func(b *bool) bool { return b != nil && *b }
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			state := "not-ready"
			switch {
			case on(e.Conditions.Ready):
				state = "ready"
			case on(e.Conditions.Serving) && on(e.Conditions.Terminating):
				state = "serving-terminating"
			case on(e.Conditions.Terminating):
				state = "terminating"
			}
			zone := ""
			if e.Zone != nil {
				zone = " " + *e.Zone
			}
			out = append(out, e.Addresses[0]+" "+state+zone)
		}
	}
	slices.Sort(out)
	return out, nil
}

func expect(t *testing.T, c *Cluster, service string, want ...string) {
	t.Helper()
	testenv.Succeeds(t, "endpoints of "+service, func() error {
		got, err := endpoints(t.Context(), c, "shop", service)
		must(t, err)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestControlPlane uses one cluster for all subtests, because a start is slow.
func TestControlPlane(t *testing.T) {
	c, ctx := newCluster(t), t.Context()
	must(t, c.AddNamespace(ctx, "shop"))
	must(t, c.AddNode(ctx, Node{Name: "n1", Zone: "a", Addrs: []netip.Addr{netip.MustParseAddr("172.18.0.11")}, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}))
	must(t, c.AddNode(ctx, Node{Name: "n2", Zone: "b"}))

	t.Run("kubectl applies valid objects and rejects invalid ones", func(t *testing.T) {
		must(t, c.Apply(ctx, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ipFamilyPolicy: RequireDualStack, ports: [{name: http, port: 80, targetPort: 8080}]}
`))
		s, err := c.Client.CoreV1().Services("shop").Get(ctx, "web", metav1.GetOptions{})
		must(t, err)
		if len(s.Spec.ClusterIPs) != 2 || !c.services[0].Contains(netip.MustParseAddr(s.Spec.ClusterIPs[0])) {
			t.Errorf("cluster IPs %v, want one of each of %v", s.Spec.ClusterIPs, c.services)
		}
		if err := c.Apply(ctx, "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 70000}]}}"); err == nil || !strings.Contains(err.Error(), "70000") {
			t.Errorf("port 70000: %v", err)
		}
	})

	t.Run("slices follow Pods", func(t *testing.T) {
		labels := map[string]string{"app": "web"}
		for i, node := range []string{"n1", "n2"} {
			must(t, c.AddPod(ctx, Pod{
				Namespace: "shop", Name: fmt.Sprint("web-", i), Labels: labels, Node: node, Ready: true,
				Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.244.%d.2", i+1)), netip.MustParseAddr(fmt.Sprintf("fd00:%d::2", i+1))},
			}))
		}
		expect(t, c, "web", "10.244.1.2 ready a", "10.244.2.2 ready b", "fd00:1::2 ready a", "fd00:2::2 ready b")
		must(t, c.SetPodReady(ctx, "shop", "web-0", false))
		expect(t, c, "web", "10.244.1.2 not-ready a", "10.244.2.2 ready b", "fd00:1::2 not-ready a", "fd00:2::2 ready b")
		must(t, c.TerminatePod(ctx, "shop", "web-1"))
		expect(t, c, "web", "10.244.1.2 not-ready a", "10.244.2.2 serving-terminating b", "fd00:1::2 not-ready a", "fd00:2::2 serving-terminating b")
		must(t, c.SetPodReady(ctx, "shop", "web-1", false))
		expect(t, c, "web", "10.244.1.2 not-ready a", "10.244.2.2 terminating b", "fd00:1::2 not-ready a", "fd00:2::2 terminating b")
		must(t, c.RemovePod(ctx, "shop", "web-1"))
		expect(t, c, "web", "10.244.1.2 not-ready a", "fd00:1::2 not-ready a")
	})

	t.Run("a service account has the permissions of its roles, and its requests are recorded", func(t *testing.T) {
		must(t, c.Apply(ctx, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [services], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`))
		path, err := c.ServiceAccountKubeconfig(ctx, "default", "reader")
		must(t, err)
		config, err := clientcmd.BuildConfigFromFlags("", path)
		must(t, err)
		config.Dial = c.dial
		client, err := kubernetes.NewForConfig(config)
		must(t, err)
		testenv.Eventually(t, "the authorizer knows the role", func() bool { // through a watch
			_, err = client.CoreV1().Services("shop").List(ctx, metav1.ListOptions{})
			return !apierrors.IsForbidden(err)
		})
		must(t, err)
		if _, err = client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("list Pods: %v, want it forbidden", err)
		}
		got, err := c.Requests()
		must(t, err)
		want := []Request{
			{User: reader, Verb: "list", Resource: "services", Namespace: "shop", URI: "/api/v1/namespaces/shop/services", Code: 200},
			{User: reader, Verb: "list", Resource: "pods", Namespace: "shop", URI: "/api/v1/namespaces/shop/pods", Code: 403},
		}
		if len(got) < 2 || !slices.Equal(got[len(got)-2:], want) {
			t.Errorf("recorded\n%+v\nwant at its end\n%+v", got, want)
		}
	})

	t.Run("the API server keeps its state across a restart", func(t *testing.T) {
		c.StopAPIServer()
		if _, err := c.Client.CoreV1().Services("shop").Get(ctx, "web", metav1.GetOptions{}); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Errorf("stopped: %v, want a refused connection", err)
		}
		begin := time.Now()
		must(t, c.StartAPIServer(ctx))
		t.Logf("back after %s", time.Since(begin).Round(time.Millisecond))
		expect(t, c, "web", "10.244.1.2 not-ready a", "fd00:1::2 not-ready a")
		must(t, c.SetPodReady(ctx, "shop", "web-0", true))
		expect(t, c, "web", "10.244.1.2 ready a", "fd00:1::2 ready a") // the controllers have reconnected
	})

	t.Run("API server and etcd are away", func(t *testing.T) {
		c.StopAPIServer()
		c.StopEtcd()
		must(t, c.StartEtcd(ctx))
		if c.apiserver.running() {
			t.Error("the API server runs already")
		}
		must(t, c.StartAPIServer(ctx))
		expect(t, c, "web", "10.244.1.2 ready a", "fd00:1::2 ready a")
	})

	t.Run("many Services at once", func(t *testing.T) {
		begin := time.Now()
		must(t, c.CreateInBulk(ctx, 300, func(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
			name := fmt.Sprint("s", i)
			var eps []Endpoint
			for j := range 10 {
				eps = append(eps, Endpoint{Addr: netip.AddrFrom4([4]byte{10, 200, byte(i), byte(j)}), Node: "n1", Zone: "a"})
			}
			return Service("shop", name, netip.AddrFrom4([4]byte{10, 96, 100 + byte(i/250), byte(i%250 + 1)}), 80), Slice("shop", name, 8080, eps...)
		}))
		t.Logf("300 Services with 10 endpoints after %s", time.Since(begin).Round(time.Millisecond))
		if got, err := endpoints(ctx, c, "shop", "s299"); err != nil || len(got) != 10 {
			t.Errorf("s299: %q, %v", got, err)
		}
		err := c.CreateInBulk(ctx, 40, func(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
			return Service("shop", "s7", netip.Addr{}, 80), nil
		})
		if !apierrors.IsAlreadyExists(err) {
			t.Errorf("a second s7: %v, want it refused", err)
		}
	})

	t.Run("logs are kept", func(t *testing.T) {
		if logs := c.Logs(); !strings.Contains(logs, "--- kube-apiserver\n") {
			t.Errorf("no log of the API server in\n%s", logs)
		}
	})

	pids := []int{c.etcd.life.PID(), c.apiserver.life.PID(), c.manager.life.PID()}
	c.Close()
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprint("/proc/", pid)); err == nil {
			t.Errorf("process %d is there after Close", pid)
		}
	}
	if _, err := os.Stat(c.Dir()); err == nil {
		t.Errorf("%s is there after Close", c.Dir())
	}
}

func TestFailedStartReportsTheProgramsOutput(t *testing.T) {
	lab, err := testnet.New()
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	_, err = Start(t.Context(), Options{Host: lab.Node, Services: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")}})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver") || !strings.Contains(err.Error(), "service-cluster-ip-range") {
		t.Errorf("two ranges of one family: %v", err)
	}
}
