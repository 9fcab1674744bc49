package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// environment is a control plane on its own host, with nodes on the same network.
//
//	api ── net ──┬── node 0: kube-proxy ── client, pods, left, right
//	             └── node 1: sluice     ── client, pods, left, right
type environment struct {
	net     *testnet.Lab
	cluster *testcluster.Cluster
	dir     string
	nodes   []*node
	users   map[string]string // kubeconfig files
	watches map[string]int    // at the API server, before any proxy comes
}

// Users of the API server. Both proxies get the same permissions; sluice's own ClusterRole is tested elsewhere.
const (
	kubeProxyUser = "system:kube-proxy"
	sluiceUser    = "system:serviceaccount:kube-system:sluice"
)

// podCIDR contains the Pods on the nodes: the client and the two endpoints that a Service moves between.
var podCIDR = netip.MustParsePrefix("10.244.0.0/16")

func newEnvironment(ctx context.Context, dir string) (*environment, error) {
	s := &environment{dir: dir, users: map[string]string{}}
	err := s.open(ctx)
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *environment) open(ctx context.Context) (err error) {
	if s.net, err = testnet.New(); err != nil {
		return err
	}
	api, err := s.net.AddHost("api", netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		return err
	}
	if s.cluster, err = testcluster.Start(ctx, testcluster.Options{Host: api, NoControllers: true}); err != nil {
		return err
	}
	for user, groups := range map[string][]string{
		kubeProxyUser: nil, sluiceUser: {"system:serviceaccounts", "system:serviceaccounts:kube-system"},
	} {
		if s.users[user], err = s.cluster.UserKubeconfig(user, groups...); err != nil {
			return err
		}
	}
	// kube-proxy's built-in ClusterRole has all permissions that sluice needs to forward.
	_, err = s.cluster.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sluice"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: sluiceUser}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ClusterRoleBinding sluice: create: %w", err)
	}
	s.watches, err = loadgen.CountWatches(ctx, s.cluster)
	return err
}

// close removes everything. Nodes are closed only here, because the kernel frees namespaces with many rules
// asynchronously, which would disturb measurements.
func (s *environment) close() {
	for _, n := range s.nodes {
		n.lab.Close()
	}
	if s.cluster != nil {
		s.cluster.Close()
	}
	if s.net != nil {
		s.net.Close()
	}
}

// node is a node, initially without rules.
type node struct {
	lab  *testnet.Lab
	name string
	dir  string

	client *testnet.Host // a Pod that opens connections
	pods   *testnet.Host // has the addresses of all of loadgen's endpoints
	sides  [2]*testnet.Host
	stop   []func()
}

// addNode adds a new node.
func (s *environment) addNode(ctx context.Context) (*node, error) {
	i := len(s.nodes)
	addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)})
	n := &node{name: fmt.Sprint("node-", i), dir: filepath.Join(s.dir, fmt.Sprint("node-", i))}
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		return nil, err
	}
	if err := s.cluster.AddNode(ctx, testcluster.Node{Name: n.name, Zone: "zone-0", Addrs: []netip.Addr{addr}}); err != nil {
		return nil, err
	}
	var err error
	if n.lab, err = s.net.AddNode(fmt.Sprint("n", i), nil, addr); err != nil {
		return nil, err
	}
	s.nodes = append(s.nodes, n)
	return n, n.addHosts()
}

func (n *node) addHosts() (err error) {
	host := func(name, addr string) (h *testnet.Host) {
		if err == nil {
			h, err = n.lab.AddHost(name, netip.MustParseAddr(addr))
		}
		return h
	}
	n.client = host("client", "10.244.0.2")
	n.pods = host("pods", "10.244.0.3")
	n.sides = [2]*testnet.Host{host("left", "10.244.0.4"), host("right", "10.244.0.5")}
	if err != nil {
		return err
	}
	if err := errors.Join(n.pods.Own(loadgen.PodCIDR()), n.lab.Route(loadgen.PodCIDR(), n.pods)); err != nil {
		return err
	}
	for name, h := range map[byte]*testnet.Host{'p': n.pods, '0': n.sides[0], '1': n.sides[1]} {
		stop, err := serve(h, loadgen.TargetPort, name)
		if err != nil {
			return err
		}
		n.stop = append(n.stop, stop)
	}
	return nil
}

// endpoint returns the endpoint on the left (0) or the right (1).
func (n *node) endpoint(i int) testcluster.Endpoint {
	return testcluster.Endpoint{Addr: n.sides[i].Addrs[0], Node: n.name, Zone: "zone-0"}
}

// received returns the bytes received on the node's uplink, all of them from the API server. Segments that the kernel
// delivers as one packet count one header.
func (n *node) received() (bytes float64, err error) {
	var text []byte
	err = n.lab.Node.Do(func() error {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l), "eth0:"); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, errors.Join(err, fmt.Errorf("%s: no link eth0", n.name))
}
