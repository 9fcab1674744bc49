package source

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// taintToBeDeleted marks a Node that the cluster autoscaler is about to delete (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Namespace converts the metadata of a namespace: the labels with these names. The value is never nil.
func Namespace(o *metav1.ObjectMeta, labels []string) (*model.Namespace, []Problem) {
	p := problems{object: "Namespace " + o.Name}
	return &model.Namespace{Name: o.Name, Labels: p.values(o.Labels, labels, "metadata.labels", maxLabel, true)}, p.all()
}

// Node converts a Node. The value is never nil.
func Node(o *corev1.Node) (*model.Node, []Problem) {
	p := problems{object: "Node " + o.Name}
	n := &model.Node{
		Name:    o.Name,
		Zone:    o.Labels[corev1.LabelTopologyZone],
		Leaving: o.DeletionTimestamp != nil,
	}
	n.Labels = p.values(o.Labels, slices.Sorted(maps.Keys(o.Labels)), "metadata.labels", maxLabel, false)
	for i := range o.Status.Conditions {
		c := &o.Status.Conditions[i]
		n.Ready = n.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	for _, t := range o.Spec.Taints {
		n.Leaving = n.Leaving || t.Key == taintToBeDeleted
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, na := range o.Status.Addresses {
			if na.Type != kind {
				continue
			}
			a, err := ipaddr.Parse(na.Address)
			if err != nil {
				p.add(fmt.Sprintf("status.addresses[%d].address", i), "%w", err)
				continue
			}
			n.Addresses = append(n.Addresses, a)
		}
	}
	cidrs, field := o.Spec.PodCIDRs, func(i int) string { return fmt.Sprintf("spec.podCIDRs[%d]", i) }
	if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
		cidrs, field = []string{o.Spec.PodCIDR}, func(int) string { return "spec.podCIDR" }
	}
	for i, s := range cidrs {
		c, err := ipaddr.ParsePrefix(s)
		if err != nil {
			p.add(field(i), "%w", err)
			continue
		}
		n.PodCIDRs = append(n.PodCIDRs, c)
	}
	if cpu, ok := o.Status.Allocatable[corev1.ResourceCPU]; ok {
		if cpu.Sign() < 0 {
			p.add("status.allocatable.cpu", "%s is negative: using unknown", cpu.String())
		} else {
			n.MilliCPU = milliCPU(cpu)
		}
	}
	return n, p.all()
}
