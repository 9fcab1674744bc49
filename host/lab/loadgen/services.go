// Package loadgen fills a real API server with Services and EndpointSlices like those of a large cluster, for benchmarks.
// Slices have the fields that the EndpointSlice controller writes: nodes, zones, Pods. There is no controller.
package loadgen

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// Namespace of all Services.
const Namespace = "loadgen"

// Ports of all Services and endpoints.
const (
	port       = 80
	TargetPort = 8080
)

// Number of nodes and zones of the endpoints.
const nodes, zones = 30, 3

// PodCIDR contains the endpoints' addresses.
func PodCIDR() netip.Prefix { return netip.MustParsePrefix("11.0.0.0/8") }

// ServiceName returns the name of Service i.
func ServiceName(i int) string { return fmt.Sprintf("svc-%05d", i) }

// ClusterIP returns the cluster IP of Service i, in 10.96.0.0/16.
func ClusterIP(i int) netip.Addr {
	i += 256 // the API server allocates from the first ones
	return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
}

// ServiceAddr returns the cluster IP and port of Service i.
func ServiceAddr(i int) netip.AddrPort { return netip.AddrPortFrom(ClusterIP(i), port) }

// CreateServices creates the Services from ≤ i < to, each with its own endpoints, and with ports from 80 on.
func CreateServices(ctx context.Context, c *testcluster.Cluster, from, to, endpoints, ports int) error {
	if err := c.AddNamespace(ctx, Namespace); err != nil {
		return err
	}
	return c.Parallel(ctx, to-from, func(ctx context.Context, n int) error {
		i := from + n
		s := testcluster.Service(Namespace, ServiceName(i), ClusterIP(i), port)
		s.Labels = map[string]string{"app": s.Name}
		slice := Slice(i, i*endpoints, endpoints)
		for more := 1; more < ports; more++ {
			name := fmt.Sprint("port-", more)
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(port + more)})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: slice.Ports[0].Port, Protocol: slice.Ports[0].Protocol})
		}
		return retryServerErrors(ctx, func() error {
			err := c.CreateInBulk(ctx, 1, func(int) (*corev1.Service, *discoveryv1.EndpointSlice) { return s, nil })
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			err = c.CreateInBulk(ctx, 1, func(int) (*corev1.Service, *discoveryv1.EndpointSlice) { return nil, slice })
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	})
}

// retryServerErrors retries requests that time out in the API server of a busy machine.
func retryServerErrors(ctx context.Context, f func() error) error {
	const tries, pause = 5, 2 * time.Second
	for i := 1; ; i++ {
		err := f()
		busy := apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
		if err == nil || !busy || i == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// CreateService creates another Service with one slice of endpoints.
func CreateService(ctx context.Context, c *testcluster.Cluster, name string, clusterIP netip.Addr, endpoints []testcluster.Endpoint) error {
	return c.CreateInBulk(ctx, 1, func(int) (*corev1.Service, *discoveryv1.EndpointSlice) {
		return testcluster.Service(Namespace, name, clusterIP, port), addControllerMetadata(testcluster.Slice(Namespace, name, TargetPort, endpoints...))
	})
}

// Slice returns a slice of Service i with n endpoints, numbered from first. Numbers must differ between Services.
func Slice(i, first, n int) *discoveryv1.EndpointSlice {
	return addControllerMetadata(testcluster.Slice(Namespace, ServiceName(i), TargetPort, Endpoints(first, n)...))
}

// Endpoints returns n endpoints, numbered from first.
func Endpoints(first, n int) (list []testcluster.Endpoint) {
	for id := first; id < first+n; id++ {
		list = append(list, testcluster.Endpoint{
			Addr: netip.AddrFrom4([4]byte{11, byte(id >> 16), byte(id >> 8), byte(id)}),
			Node: fmt.Sprint("node-", id%nodes), Zone: fmt.Sprint("zone-", id%zones),
		})
	}
	return list
}

// addControllerMetadata adds the metadata that the controller writes.
func addControllerMetadata(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	for j := range s.Endpoints {
		e := &s.Endpoints[j]
		pod := fmt.Sprintf("%s-6d4b75cb6d-%s", s.Labels[discoveryv1.LabelServiceName], e.Addresses[0])
		e.TargetRef = &corev1.ObjectReference{
			Kind: "Pod", Namespace: s.Namespace, Name: pod, UID: types.UID(fmt.Sprintf("9b2f3c1e-7a54-4f0e-8d61-%012x", j)),
		}
	}
	return s
}

// SliceUpdater updates the slice of one Service repeatedly.
type SliceUpdater struct {
	cluster *testcluster.Cluster
	slice   *discoveryv1.EndpointSlice
}

// NewSliceUpdater returns an updater of an existing Service.
func NewSliceUpdater(ctx context.Context, c *testcluster.Cluster, service string) (*SliceUpdater, error) {
	s, err := c.Client.DiscoveryV1().EndpointSlices(Namespace).Get(ctx, service+"-1", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("EndpointSlice %s/%s-1: get: %w", Namespace, service, err)
	}
	return &SliceUpdater{c, s}, nil
}

// Name returns the slice's name.
func (c *SliceUpdater) Name() string { return c.slice.Name }

// Update replaces the endpoints. It returns the times just before the write and at the API server's acknowledgement.
func (c *SliceUpdater) Update(ctx context.Context, endpoints ...testcluster.Endpoint) (begin, acked time.Time, err error) {
	next := addControllerMetadata(testcluster.Slice(Namespace, c.slice.Labels[discoveryv1.LabelServiceName], TargetPort, endpoints...))
	next.ResourceVersion = c.slice.ResourceVersion
	begin = time.Now()
	got, err := c.cluster.Client.DiscoveryV1().EndpointSlices(Namespace).Update(ctx, next, metav1.UpdateOptions{})
	acked = time.Now()
	if err != nil {
		return begin, acked, fmt.Errorf("EndpointSlice %s/%s: update: %w", Namespace, c.slice.Name, err)
	}
	c.slice = got
	return begin, acked, nil
}

// Watch opens a plain watch of the slice and returns the arrival time of each event from now on, until ctx ends. The slice's own
// version is no beginning: the server may have forgotten it.
func (c *SliceUpdater) Watch(ctx context.Context) (<-chan time.Time, error) {
	slices := c.cluster.Client.DiscoveryV1().EndpointSlices(Namespace)
	selected := metav1.ListOptions{FieldSelector: "metadata.name=" + c.slice.Name}
	list, err := slices.List(ctx, selected)
	if err != nil {
		return nil, fmt.Errorf("EndpointSlice %s/%s: list: %w", Namespace, c.slice.Name, err)
	}
	selected.ResourceVersion = list.ResourceVersion
	w, err := slices.Watch(ctx, selected)
	if err != nil {
		return nil, fmt.Errorf("EndpointSlice %s/%s: watch: %w", Namespace, c.slice.Name, err)
	}
	out := make(chan time.Time, 1000)
	go func() {
		defer close(out)
		for range w.ResultChan() {
			out <- time.Now()
		}
	}()
	return out, nil
}
