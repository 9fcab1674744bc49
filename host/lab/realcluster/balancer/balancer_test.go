package balancer

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// network records where addresses lead, and knows which nodes have endpoints.
type network struct {
	mu      sync.Mutex
	routes  map[netip.Addr][]string
	healthy []string
}

func (n *network) Spread(to netip.Addr, nodes []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(nodes) == 0 {
		delete(n.routes, to)
	} else {
		n.routes[to] = nodes
	}
	return nil
}

func (n *network) Healthy(_ context.Context, node string, port int32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return port != 0 && slices.Contains(n.healthy, node)
}

func (n *network) setHealthy(nodes ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.healthy = nodes
}

func (n *network) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, a := range slices.SortedFunc(maps.Keys(n.routes), netip.Addr.Compare) {
		out = append(out, fmt.Sprintf("%s via %s", a, strings.Join(n.routes[a], ",")))
	}
	return strings.Join(out, "; ")
}

// lab is a cluster with three nodes, the last of which balancers leave out.
type lab struct {
	*testcluster.Cluster
	network network
}

func start(t *testing.T) *lab {
	t.Helper()
	fabric, err := testnet.New(netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fd00:18::1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fabric.Close)
	c, err := testcluster.Start(t.Context(), testcluster.Options{Host: fabric.Node, Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	l := &lab{Cluster: c, network: network{routes: map[netip.Addr][]string{}}}
	for i, name := range []string{"n1", "n2", "cp"} {
		node := testcluster.Node{Name: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 18, 0, byte(11 + i)})}}
		if name == "cp" {
			node.More = map[string]string{v1.LabelNodeExcludeBalancers: ""}
		}
		if err := c.AddNode(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	var log testenv.Buffer
	b := &Balancer{Client: c.Client, Network: &l.network, Ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/30"), netip.MustParsePrefix("2001:db8::/120")}, Log: &log}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return l
}

// await waits until what got returns is as wanted.
func await(t *testing.T, want string, got func() string) {
	t.Helper()
	last := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if last = got(); last == want {
			return
		}
	}
	t.Fatalf("got  %q\nwant %q", last, want)
}

// status is a Service's addresses and whether it has the finalizer.
func (l *lab) status(t *testing.T, name string) string {
	t.Helper()
	s, err := l.Client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "not found"
	} else if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		addrs = append(addrs, i.IP)
	}
	return fmt.Sprintf("%v %t", addrs, slices.Contains(s.Finalizers, Finalizer))
}

func (l *lab) add(t *testing.T, name string, change func(*v1.ServiceSpec)) {
	t.Helper()
	policy := v1.IPFamilyPolicyPreferDualStack
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeLoadBalancer, Ports: []v1.ServicePort{{Port: 80}}, IPFamilyPolicy: &policy,
	}}
	change(&s.Spec)
	if _, err := l.Client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) patch(t *testing.T, name, patch string) {
	t.Helper()
	if _, err := l.Kubectl(t.Context(), "", "-n", "default", "patch", "service", name, "--type=merge", "-p", patch); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) remove(t *testing.T, name string) {
	t.Helper()
	if err := l.Client.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func single(s *v1.ServiceSpec) { *s.IPFamilyPolicy = v1.IPFamilyPolicySingleStack }

func TestServicesGetAddressesThatLeadToReadyNodes(t *testing.T) {
	l := start(t)
	l.add(t, "dual", func(*v1.ServiceSpec) {})
	await(t, "[203.0.113.1 2001:db8::1] true", func() string { return l.status(t, "dual") })
	await(t, "203.0.113.1 via n1,n2; 2001:db8::1 via n1,n2", l.network.String)
	l.add(t, "other", single)
	await(t, "[203.0.113.2] true", func() string { return l.status(t, "other") })
	_, err := l.Kubectl(t.Context(), "", "patch", "node", "n1", "--subresource=status", "-p", `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "203.0.113.1 via n2; 203.0.113.2 via n2; 2001:db8::1 via n2", l.network.String)

	// An address is free when its Service has gone, or has another type.
	l.patch(t, "dual", `{"spec": {"type": "ClusterIP"}}`)
	await(t, "[] false", func() string { return l.status(t, "dual") })
	await(t, "203.0.113.2 via n2", l.network.String)
	l.remove(t, "other")
	await(t, "not found", func() string { return l.status(t, "other") })
	await(t, "", l.network.String)
	l.patch(t, "dual", `{"spec": {"type": "LoadBalancer"}}`)
	await(t, "[203.0.113.1 2001:db8::1] true", func() string { return l.status(t, "dual") })
}

func TestLocalServicesLeadToNodesWithEndpoints(t *testing.T) {
	l := start(t)
	l.add(t, "local", func(s *v1.ServiceSpec) { single(s); s.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal })
	await(t, "203.0.113.1 via n1,n2", l.network.String) // none has one: it does not matter
	for _, nodes := range [][]string{{"n2"}, {"n1", "n2"}, {"n1"}} {
		l.network.setHealthy(nodes...)
		await(t, "203.0.113.1 via "+strings.Join(nodes, ","), l.network.String)
	}
}

func TestAffinityKeepsANode(t *testing.T) {
	l := start(t)
	l.network.setHealthy("n2")
	l.add(t, "sticky", func(s *v1.ServiceSpec) {
		single(s)
		s.ExternalTrafficPolicy, s.SessionAffinity = v1.ServiceExternalTrafficPolicyLocal, v1.ServiceAffinityClientIP
	})
	await(t, "203.0.113.1 via n2", l.network.String)
	l.network.setHealthy("n1", "n2")
	l.add(t, "later", single) // has been served after the nodes were looked at again
	await(t, "203.0.113.1 via n2; 203.0.113.2 via n1,n2", l.network.String)
	l.network.setHealthy("n1")
	await(t, "203.0.113.1 via n1; 203.0.113.2 via n1,n2", l.network.String)
	l.network.setHealthy("n1", "n2")
	l.patch(t, "sticky", `{"spec": {"sessionAffinity": "None"}}`)
	await(t, "203.0.113.1 via n1,n2; 203.0.113.2 via n1,n2", l.network.String)
}

func TestServicesWithoutAFreeAddressWait(t *testing.T) {
	l := start(t)
	for i, name := range []string{"a", "b", "c"} { // a /30 has three addresses beside the first
		l.add(t, name, single)
		await(t, fmt.Sprintf("[203.0.113.%d] true", i+1), func() string { return l.status(t, name) })
	}
	l.add(t, "d", single)
	await(t, "[] true", func() string { return l.status(t, "d") })
	l.remove(t, "b")
	await(t, "[203.0.113.2] true", func() string { return l.status(t, "d") })
}
