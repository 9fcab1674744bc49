package realcluster

import (
	"context"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// scheduler is the name of the program.
const scheduler = "kube-scheduler"

// controlPlane starts the control plane.
func (c *Cluster) controlPlane(ctx context.Context) (err error) {
	cp := c.control
	c.Cluster, err = testcluster.Start(ctx, testcluster.Options{
		Host: cp.Host(), Addr: cp.Addrs[0], Port: apiPort, Dir: filepath.Join(c.config.Dir, "control-plane"),
		Services: c.config.Family.services(), Pods: c.config.Family.pods(),
	})
	if err != nil {
		return err
	}
	config, err := c.UserKubeconfig("system:" + scheduler)
	if err != nil {
		return err
	}
	err = c.Run(scheduler, filepath.Join(c.config.Programs.Bin, scheduler),
		"--kubeconfig="+config, "--leader-elect=false", "--bind-address=127.0.0.1")
	if err != nil {
		return err
	}
	c.logf("the control plane is ready: %s", c.Config.Host)
	return nil
}

// join completes the nodes that the kubelets have registered: labels, kube-proxy, which a network plugin needs, and Pod networks.
func (c *Cluster) join(ctx context.Context) error {
	if slices.Contains(c.Nodes, c.control) {
		if err := c.labelControlPlane(ctx); err != nil {
			return err
		}
	}
	if err := c.kubeProxy(ctx); err != nil {
		return err
	}
	if err := c.parallel(func(n *Node) error { return n.podNetwork(ctx) }); err != nil {
		return err
	}
	if err := c.networkPlugin(ctx); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "", "wait", "--for=condition=Ready", "node", "--all", "--timeout=180s")
	c.logf("nodes are ready")
	return err
}

// networkPlugin starts the network plugin, and waits until it is ready on all nodes.
func (c *Cluster) networkPlugin(ctx context.Context) error {
	plugin := c.config.Network
	if plugin == nil {
		return nil
	}
	archives, err := filepath.Glob(filepath.Join(plugin.Images, "*.tar"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		if err := c.parallel(func(n *Node) error { return n.Import(ctx, a, "") }); err != nil {
			return err
		}
	}
	if err := c.Apply(ctx, plugin.Objects); err != nil {
		return err
	}
	if err := c.Rollout(ctx, plugin.Namespace, "daemonset/"+plugin.DaemonSet); err != nil {
		return err
	}
	c.logf("%s is ready", plugin.DaemonSet)
	return nil
}

// labelControlPlane labels the control plane's node as kubeadm does. Before a node is ready: the EndpointSlice controller, which
// leaves nodes with the first label out of topology hints, reads labels again only when a node's readiness changes, and nodes
// without a Pod network are not ready.
func (c *Cluster) labelControlPlane(ctx context.Context) error {
	labels := `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "", "node.kubernetes.io/exclude-from-external-load-balancers": ""}}}`
	return poll(ctx, "Node "+ControlPlane, func() error {
		_, err := c.Client.CoreV1().Nodes().Patch(ctx, ControlPlane, types.MergePatchType, []byte(labels), metav1.PatchOptions{})
		return err
	})
}
