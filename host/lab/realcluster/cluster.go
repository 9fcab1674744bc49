package realcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// apiPort is the API server's port, on the control plane's node.
const apiPort = 6443

// Cluster is a running cluster.
type Cluster struct {
	// The control plane: clients, kubectl, stopping and starting the API server. Its programs run in the network namespace of the
	// control plane's node, but not among that node's processes.
	*testcluster.Cluster
	// Outside is a host beyond the nodes, for clients and kubectl: it reaches nodes and Pods, but not cluster IPs.
	Outside *testnet.Host
	// Fabric is the router between the nodes and Outside. Its Route can lead to addresses of load balancers.
	Fabric *testnet.Lab
	// Nodes are the control plane's node, unless the workers are guests, and the workers.
	Nodes []*Node
	// Tools is a folder with kubectl.
	Tools string
	// Work is a folder with a copy of deploy/, in which Block runs the commands of its README.
	Work string

	config  Config
	control *Node  // the control plane's
	kernel  string // of guests
	cgroups []cgroup
	began   time.Time
}

// Start starts a cluster, and returns when its nodes, Service proxy and DNS are ready: about a minute. The caller must call
// Close.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if err := config.Complete(); err != nil {
		return nil, err
	}
	c := &Cluster{config: config, began: time.Now()}
	if err := c.start(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("cluster %s: %w", config.Name, err)
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.config.Programs == (programs.Set{}) {
		if c.config.Programs, err = programs.Find(); err != nil {
			return err
		}
	}
	if c.Tools, err = binaries.Find(binaries.Cluster()...); err != nil {
		return err
	}
	if c.kernel, err = c.findKernel(); err != nil {
		return err
	}
	if c.kernel == "" {
		if c.cgroups, err = nodeCgroups(); err != nil {
			return err
		}
		if err := room(c.config.Workers + 1); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.config.Dir, 0o700); err != nil {
		return err
	}
	if err := c.network(); err != nil {
		return err
	}
	if err := c.controlPlane(ctx); err != nil {
		return err
	}
	if err := c.parallel(func(n *Node) error { return n.boot(ctx) }); err != nil {
		return err
	}
	c.logf("kubelets run on %d nodes", len(c.Nodes))
	if err := c.join(ctx); err != nil {
		return err
	}
	return c.services(ctx)
}

// network creates the fabric, its outside and the nodes.
func (c *Cluster) network() (err error) {
	family := c.config.Family
	if c.Fabric, err = testnet.New(family.fabric()...); err != nil {
		return err
	}
	if c.Outside, err = c.Fabric.AddHost("outside", family.outside()...); err != nil {
		return err
	}
	for i := range c.config.Workers + 1 {
		n := &Node{Name: fmt.Sprint("n", i), Zone: zone(i), Addrs: family.node(i), cluster: c}
		if i == 0 {
			n.Name = ControlPlane
		}
		n.dir = filepath.Join(c.config.Dir, "nodes", n.Name)
		if err := n.connect(); err != nil {
			return err
		}
		if i == 0 {
			c.control = n
		}
		if i > 0 || c.kernel == "" {
			c.Nodes = append(c.Nodes, n)
		}
	}
	return nil
}

// Node returns a node by its name, nil if there is none.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Workers returns the nodes beside the control plane's.
func (c *Cluster) Workers() []*Node { return c.Nodes[len(c.Nodes)-c.config.Workers:] }

// Kubeconfig returns the path of the administrator's kubeconfig, which works in the network namespaces of Outside and the nodes.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir(), "admin.kubeconfig") }

// parallel calls f for all nodes at once.
func (c *Cluster) parallel(f func(*Node) error) error {
	errs := make([]error, len(c.Nodes))
	var all sync.WaitGroup
	for i, n := range c.Nodes {
		all.Go(func() { errs[i] = f(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Close ends all processes of the cluster and removes its cgroups and its folder.
func (c *Cluster) Close() {
	_ = c.parallel(func(n *Node) error { return n.Stop() })
	if c.Cluster != nil {
		c.Cluster.Close()
	}
	if c.control != nil {
		_ = c.control.Stop()
	}
	if c.Fabric != nil {
		c.Fabric.Close()
	}
	if err := Clean(c.config.Name, c.config.Dir); err != nil {
		c.logf("%v", err)
	}
}

// Clean removes what a cluster whose process has been killed leaves behind: cgroups and its folder.
func Clean(name, dir string) error {
	groups, err := nodeCgroups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		made, _ := filepath.Glob(filepath.Join(g.Path, cgroupName(name, "*")))
		for _, path := range slices.Sorted(slices.Values(made)) {
			err = errors.Join(err, removeCgroup(path))
		}
	}
	return errors.Join(err, removeAll(dir))
}

// removeAll is os.RemoveAll, again while the kernel takes down the file systems of containers that have been killed.
func removeAll(dir string) (err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
	}
	return err
}

func (c *Cluster) logf(format string, args ...any) {
	fmt.Fprintf(c.config.Log, "%5.1f s  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}
