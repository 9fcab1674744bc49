package testcluster

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// Node describes a Node for AddNode.
type Node struct {
	Name  string
	Zone  string            // "": none
	Addrs []netip.Addr      // InternalIPs
	Pods  []netip.Prefix    // spec.podCIDRs
	CPU   string            // capacity; "": 4
	More  map[string]string // labels beside the usual ones
}

// AddNode creates a Node that is Ready, as a kubelet would.
func (c *Cluster) AddNode(ctx context.Context, n Node) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"}}}
	for k, v := range n.More {
		node.Labels[k] = v
	}
	if n.Zone != "" {
		node.Labels[corev1.LabelTopologyZone] = n.Zone
	}
	for _, p := range n.Pods {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	}
	cpu := n.CPU
	if cpu == "" {
		cpu = "4"
	}
	amount, err := resource.ParseQuantity(cpu)
	if err != nil {
		return fmt.Errorf("Node %s: CPU %q: %w", n.Name, cpu, err)
	}
	made, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("Node %s: create: %w", n.Name, err)
	}
	if len(made.Spec.Taints) > 0 { // not-ready, by admission
		made.Spec.Taints = nil
		if made, err = c.Client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("Node %s: remove its taints: %w", n.Name, err)
		}
	}
	made.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: amount, corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	made.Status.Allocatable = made.Status.Capacity
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now()}}
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}}
	for _, a := range n.Addrs {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	if _, err := c.Client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("Node %s: update its status: %w", n.Name, err)
	}
	return nil
}

// UpdateNode updates a Node's metadata and spec, and retries on conflicts.
func (c *Cluster) UpdateNode(ctx context.Context, name string, change func(*corev1.Node)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(n)
		_, err = c.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

// Pod describes a Pod for AddPod.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string
	Node            string
	Addrs           []netip.Addr // at most one a family
	Ports           []corev1.ContainerPort
	Ready           bool
}

// AddPod creates a Pod that runs on a node, as scheduler and kubelet would. Its namespace must exist.
func (c *Cluster) AddPod(ctx context.Context, p Pod) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{
			NodeName:   p.Node,
			Containers: []corev1.Container{{Name: "main", Image: "lab.invalid/main", Ports: p.Ports}},
		},
	}
	if _, err := c.Client.CoreV1().Pods(p.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("Pod %s/%s: create: %w", p.Namespace, p.Name, err)
	}
	return c.SetPodStatus(ctx, p.Namespace, p.Name, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		now := metav1.Now()
		s.StartTime = &now
		for _, a := range p.Addrs {
			s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: a.String()})
			s.PodIP = s.PodIPs[0].IP
		}
		setReady(s, p.Ready)
	})
}

// SetPodStatus updates a Pod's status, as its kubelet would.
func (c *Cluster) SetPodStatus(ctx context.Context, namespace, name string, change func(*corev1.PodStatus)) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&p.Status)
		_, err = c.Client.CoreV1().Pods(namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("Pod %s/%s: change its status: %w", namespace, name, err)
	}
	return nil
}

// SetPodReady sets whether a Pod is ready.
func (c *Cluster) SetPodReady(ctx context.Context, namespace, name string, ready bool) error {
	return c.SetPodStatus(ctx, namespace, name, func(s *corev1.PodStatus) { setReady(s, ready) })
}

func setReady(s *corev1.PodStatus, ready bool) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	s.Conditions = nil
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: status, LastTransitionTime: metav1.Now()})
	}
}

// TerminatePod deletes a Pod gracefully: it is terminating until RemovePod, and serving while it is ready.
func (c *Cluster) TerminatePod(ctx context.Context, namespace, name string) error {
	return c.deletePod(ctx, namespace, name, time.Hour)
}

// RemovePod removes a Pod, as its kubelet does when its containers have ended.
func (c *Cluster) RemovePod(ctx context.Context, namespace, name string) error {
	return c.deletePod(ctx, namespace, name, 0)
}

func (c *Cluster) deletePod(ctx context.Context, namespace, name string, grace time.Duration) error {
	seconds := int64(grace / time.Second)
	err := c.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &seconds})
	if err != nil {
		return fmt.Errorf("Pod %s/%s: delete: %w", namespace, name, err)
	}
	return nil
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
