package controller

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

// caches are the objects of the cluster that status is made of. Nodes are watched as metadata: the labels that rollouts select.
type caches struct {
	plugins, policies, clusterPolicies, reports, services, nodes cache.SharedIndexInformer
	tcpRoutes, udpRoutes                                         cache.SharedIndexInformer // of a cluster that has the Gateway API
	gateway                                                      rest.Interface
}

// newCaches returns caches that call changed after a change that may change a status.
func newCaches(c *clients, changed func()) *caches {
	list := func(resource string, example runtime.Object) cache.SharedIndexInformer {
		return informer(cache.NewListWatchFromClient(c.sluice, resource, "", fields.Everything()), example, changed)
	}
	out := &caches{
		plugins: list("serviceplugins", &v1alpha1.ServicePlugin{}), policies: list("servicepolicies", &v1alpha1.ServicePolicy{}),
		clusterPolicies: list("clusterservicepolicies", &v1alpha1.ClusterServicePolicy{}), reports: list("nodereports", &v1alpha1.NodeReport{}),
		services: informer(cache.NewListWatchFromClient(c.core, "services", "", fields.Everything()), &corev1.Service{}, changed),
	}
	_ = out.services.AddIndexers(serviceIndexers())
	route := func(resource string) cache.SharedIndexInformer {
		i := informer(cache.NewListWatchFromClient(c.gateway, resource, "", fields.Everything()), &gatewayapi.Route{}, changed)
		_ = i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) { // nobody has to install the kinds
				cache.DefaultWatchErrorHandler(ctx, r, err)
			}
		})
		return i
	}
	out.tcpRoutes, out.udpRoutes, out.gateway = route("tcproutes"), route("udproutes"), c.gateway
	nodes := metadata.NewForConfigOrDie(c.config).Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	out.nodes = informer(&cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		WatchFuncWithContext: nodes.Watch,
	}, &metav1.PartialObjectMetadata{}, changed)
	return out
}

// informer returns an informer that keeps of objects what status needs.
func informer(lw cache.ListerWatcher, example runtime.Object, changed func()) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(lw, example, 0, cache.Indexers{})
	_ = i.SetTransform(func(object any) (any, error) { return narrow(object), nil })
	_, _ = i.AddEventHandler(handler(changed))
	return i
}

// handler calls changed after changes that make a difference.
func handler(changed func()) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if !same(before, after) {
				changed()
			}
		},
	}
}

// narrow removes what status does not need.
func narrow(object any) any {
	switch o := object.(type) {
	case *corev1.Service:
		out := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, Labels: o.Labels, ResourceVersion: o.ResourceVersion}}
		if value, ok := o.Annotations[LoadReports]; ok {
			out.Annotations = map[string]string{LoadReports: value}
		}
		out.Spec.Type, out.Spec.ClusterIP, out.Spec.ClusterIPs = o.Spec.Type, o.Spec.ClusterIP, o.Spec.ClusterIPs
		for _, p := range o.Spec.Ports {
			out.Spec.Ports = append(out.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: p.Port, Protocol: p.Protocol})
		}
		return out
	case *discoveryv1.EndpointSlice:
		out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.ResourceVersion}}
		for _, e := range o.Endpoints {
			out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, TargetRef: e.TargetRef})
		}
		return out
	case *metav1.PartialObjectMetadata:
		return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: o.Labels, ResourceVersion: o.ResourceVersion}}
	case metav1.Object:
		o.SetManagedFields(nil)
	}
	return object
}

// same reports whether two versions of an object make no difference to a status: Services and Nodes change for many reasons.
func same(before, after any) bool {
	switch a := after.(type) {
	case *corev1.Service:
		b, ok := before.(*corev1.Service)
		return ok && a.UID == b.UID && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && a.Spec.Type == b.Spec.Type &&
			a.Spec.ClusterIP == b.Spec.ClusterIP && slices.Equal(a.Spec.Ports, b.Spec.Ports)
	case *metav1.PartialObjectMetadata:
		b, ok := before.(*metav1.PartialObjectMetadata)
		return ok && maps.Equal(a.Labels, b.Labels)
	}
	return false
}

// all are those of resources that every cluster has, by resource.
func (c *caches) all() map[string]cache.SharedIndexInformer {
	return map[string]cache.SharedIndexInformer{"serviceplugins": c.plugins, "servicepolicies": c.policies,
		"clusterservicepolicies": c.clusterPolicies, "nodereports": c.reports, "services": c.services, "nodes": c.nodes}
}

// run watches until ctx ends.
func (c *caches) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, i := range append(slices.Collect(maps.Values(c.all())), c.tcpRoutes, c.udpRoutes) {
		wg.Go(func() { i.RunWithContext(ctx) })
	}
	wg.Wait()
}

// unread returns the resources that have not been read yet, in order.
func (c *caches) unread() (resources []string) {
	for resource, i := range c.all() {
		if !i.HasSynced() {
			resources = append(resources, resource)
		}
	}
	slices.Sort(resources)
	return resources
}

// wait waits until everything has been read, and reports whether it has.
func (c *caches) wait(ctx context.Context) bool {
	for _, i := range c.all() {
		if !cache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			return false
		}
	}
	return true
}
