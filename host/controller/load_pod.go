package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/controller/loads"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// check returns why an endpoint is not to be connected to: whoever may write EndpointSlices in a namespace says which addresses
// they have, and the controller may reach what they may not. So the Pod is read each time, and has to have the address.
func (r *loadReports) check(ctx context.Context, namespace string, e loads.Endpoint) error {
	if e.Pod == "" || e.UID == "" {
		return errors.New("its EndpointSlice names no Pod of the namespace")
	}
	if err := r.rules.Check(e.Addr); err != nil {
		return err
	}
	pod := &corev1.Pod{}
	if err := r.clients.core.Get().Namespace(namespace).Resource("pods").Name(e.Pod).Do(ctx).Into(pod); err != nil {
		return fmt.Errorf("Pod %.63s: %w", e.Pod, err)
	}
	if why := refused(pod, e); why != "" {
		return fmt.Errorf("Pod %.63s %s", e.Pod, why)
	}
	return nil
}

// refused returns why a Pod is not the one of an endpoint, "" if it is.
func refused(pod *corev1.Pod, e loads.Endpoint) string {
	is := func(text string) bool { addr, err := ipaddr.Parse(text); return err == nil && addr == e.Addr }
	switch {
	case string(pod.UID) != e.UID:
		return "has another UID"
	case pod.Spec.HostNetwork:
		return "uses the network of its Node"
	case pod.Status.Phase != corev1.PodRunning:
		return "does not run" // its address may be another Pod's by now
	case !slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return is(ip.IP) }):
		return "has other addresses"
	case slices.ContainsFunc(pod.Status.HostIPs, func(ip corev1.HostIP) bool { return is(ip.IP) }):
		return "has the address of its Node"
	}
	return ""
}

// isClusterIP reports whether an address is the ClusterIP of a Service.
func (r *loadReports) isClusterIP(addr netip.Addr) bool {
	keys, err := r.services.GetIndexer().IndexKeys(byClusterIP, addr.String())
	return err != nil || len(keys) > 0
}
