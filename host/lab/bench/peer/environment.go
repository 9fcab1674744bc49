package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// environment is a control plane on its own host, with nodes on the same network.
//
//	api ── net ──┬── node 0: kube-proxy ── client, pods, left, right
//	             └── node 1: sluice     ── client, pods, left, right
type environment struct {
	*loadgen.Environment
	dir         string
	nodes       []*node
	kubeconfigs [2]string      // of kube-proxy and sluice
	watches     map[string]int // at the API server, before any proxy comes
}

// podCIDRs contain the Pods on the nodes: the client and the two endpoints that a Service moves between.
const podCIDRs = "10.244.0.0/16,fd00:10::/64"

// pods6 are the endpoints of the Service with an IPv6 address.
var pods6 = netip.MustParsePrefix("fd00:11::/64")

func newEnvironment(ctx context.Context, dir string) (*environment, error) {
	control, err := loadgen.NewEnvironment(ctx)
	if err != nil {
		return nil, err
	}
	s := &environment{Environment: control, dir: dir}
	if s.kubeconfigs[0], err = s.Cluster.UserKubeconfig("system:kube-proxy"); err == nil {
		s.kubeconfigs[1], err = s.Kubeconfig()
	}
	if err == nil {
		s.watches, err = loadgen.CountWatches(ctx, s.Cluster)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close removes everything. Nodes are closed only here, because the kernel frees namespaces with many rules
// asynchronously, which would disturb measurements.
func (s *environment) close() {
	for _, n := range s.nodes {
		n.lab.Close()
	}
	s.Close()
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
	if err := s.Cluster.AddNode(ctx, testcluster.Node{Name: n.name, Zone: "zone-0", Addrs: []netip.Addr{addr}}); err != nil {
		return nil, err
	}
	var err error
	if n.lab, err = s.Net.AddNode(fmt.Sprint("n", i), nil, addr); err != nil {
		return nil, err
	}
	s.nodes = append(s.nodes, n)
	return n, n.addHosts()
}

func (n *node) addHosts() (err error) {
	host := func(name string, addrs ...netip.Addr) (h *testnet.Host) {
		if err == nil {
			h, err = n.lab.AddHost(name, addrs...)
		}
		return h
	}
	ip := netip.MustParseAddr
	n.client = host("client", ip("10.244.0.2"), ip("fd00:10::2"))
	n.pods = host("pods", ip("10.244.0.3"), ip("fd00:10::3"))
	n.sides = [2]*testnet.Host{host("left", ip("10.244.0.4")), host("right", ip("10.244.0.5"))}
	if err != nil {
		return err
	}
	for _, p := range []netip.Prefix{loadgen.PodCIDR(), pods6} {
		if err := errors.Join(n.pods.Own(p), n.lab.Route(p, n.pods)); err != nil {
			return err
		}
	}
	for name, h := range map[byte]*testnet.Host{'p': n.pods, '0': n.sides[0], '1': n.sides[1]} {
		stop, err := serve(h, loadgen.TargetPort, greet(name))
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
