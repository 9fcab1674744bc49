package testcluster

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// at once: what keeps the API server busy, and no more.
const parallel = 32

// CreateInBulk creates n Services with EndpointSlices; object(i) returns them, and either may be nil. object is called
// concurrently. The first error stops it.
func (c *Cluster) CreateInBulk(ctx context.Context, n int, object func(i int) (*corev1.Service, *discoveryv1.EndpointSlice)) error {
	return c.Parallel(ctx, n, func(ctx context.Context, i int) error {
		service, slice := object(i)
		if service != nil {
			if _, err := c.Client.CoreV1().Services(service.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("Service %s/%s: create: %w", service.Namespace, service.Name, err)
			}
		}
		if slice != nil {
			if _, err := c.Client.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("EndpointSlice %s/%s: create: %w", slice.Namespace, slice.Name, err)
			}
		}
		return nil
	})
}

// Parallel calls f for 0 … n-1, several at a time. The first error stops it.
func (c *Cluster) Parallel(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(parallel, n) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// Service returns a ClusterIP Service with one port and no selector, for CreateInBulk. The API server allocates the
// cluster IP if clusterIP is not valid.
func Service(namespace, name string, clusterIP netip.Addr, port uint16) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: int32(port)}}},
	}
	if clusterIP.IsValid() {
		s.Spec.ClusterIP = clusterIP.String()
	}
	return s
}

// Endpoint is an endpoint for Slice.
type Endpoint struct {
	Addr netip.Addr
	Node string
	Zone string
}

// Slice returns the slice "SERVICE-1" of a Service, for CreateInBulk: ready endpoints, all of the first one's family.
func Slice(namespace, service string, port uint16, endpoints ...Endpoint) *discoveryv1.EndpointSlice {
	yes, no, name, number, tcp := true, false, "http", int32(port), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "testcluster"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &number, Protocol: &tcp}},
	}
	for _, e := range endpoints {
		if e.Addr.Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		d := discoveryv1.Endpoint{
			Addresses:  []string{e.Addr.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		}
		if e.Node != "" {
			d.NodeName = &e.Node
		}
		if e.Zone != "" {
			d.Zone = &e.Zone
		}
		s.Endpoints = append(s.Endpoints, d)
	}
	return s
}
