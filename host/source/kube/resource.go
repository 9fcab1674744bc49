package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/source"
)

// resource is a resource that is listed and watched, with its selectors.
type resource struct {
	name        string // for log lines: the kind, in the plural
	label       string // for metrics
	client      rest.Interface
	path        string
	namespace   string // "": all
	metadata    bool   // list and watch metadata only
	labels      string
	fields      string
	optional    bool          // continue when the server does not have the resource or forbids it
	consequence string        // of continuing without it, for the log
	retry       time.Duration // see unavailableRetry; 0: that
}

// serviceSelector excludes headless objects and those of another proxy (host/RULES.md, rule 1).
const serviceSelector = "!" + source.LabelProxyName + ",!" + source.LabelHeadless

func (c *Client) services() resource {
	return resource{name: "Services", label: "services", client: c.core, path: "services", labels: serviceSelector,
		fields: fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()}
}

func (c *Client) slices() resource {
	return resource{name: "EndpointSlices", label: "endpointslices", client: c.discovery, path: "endpointslices", labels: serviceSelector}
}

func (c *Client) node(name string) resource {
	return resource{name: "this Node", label: "node", client: c.core, path: "nodes", fields: fields.OneTermEqualSelector("metadata.name", name).String()}
}

func (c *Client) allNodes() resource {
	return resource{name: "Nodes", label: "nodes", client: c.core, path: "nodes"}
}

func (c *Client) otherNodes(exceptNode string) resource {
	return resource{name: "other Nodes", label: "nodes", client: c.core, path: "nodes", optional: true,
		fields: fields.OneTermNotEqualSelector("metadata.name", exceptNode).String(), consequence: "policies that need them are not evaluated"}
}

func (c *Client) serviceCIDRs() resource {
	return resource{name: "ServiceCIDRs", label: "servicecidrs", client: c.networking, path: "servicecidrs", optional: true,
		consequence: "connections to unallocated cluster IPs are not dropped"}
}

func (c *Client) namespaces() resource {
	return resource{name: "Namespaces", label: "namespaces", client: c.core, path: "namespaces", metadata: true, optional: true,
		consequence: "policies see no labels of namespaces: sluice's ClusterRole needs list and watch of namespaces (kustomize component namespaces)"}
}

// pods are the Pods of a watch.
func (c *Client) pods(w *podWatchSpec) resource {
	name := "Pods of namespace " + w.namespace
	if w.selector != "" {
		name = fmt.Sprintf("Pods %s with labels %.100s", w.namespace, w.selector)
	}
	return resource{name: name, label: "pods", client: c.core, path: "pods", namespace: w.namespace, labels: w.selector, metadata: !w.keys.Full,
		optional:    true,
		consequence: "policies see no labels, annotations and requests of Pods: sluice's ClusterRole needs list and watch of pods (kustomize component pods)"}
}

// request returns a GET with the resource's selectors. Retries are left to the caller: the client would retry ten times
// in ten seconds before it returns an error.
func (r resource) request(o metav1.ListOptions) *rest.Request {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
	return r.client.Get().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.path).MaxRetries(0).VersionedParams(&o, metav1.ParameterCodec)
}

func (r resource) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	request := r.request(o)
	if r.metadata {
		request.SetHeader("Accept", listMetadata+","+runtime.ContentTypeJSON+metadataList)
	}
	return request.Do(ctx).Get()
}

// Requests of metadata, which is a small part of most objects.
const (
	metadataList  = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	metadataItem  = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	listMetadata  = runtime.ContentTypeProtobuf + metadataList
	watchMetadata = runtime.ContentTypeProtobuf + metadataItem
)

// streamItems lists in protobuf and calls fn with each item as it arrives.
func (r resource) streamItems(ctx context.Context, accept string, o metav1.ListOptions, fn func(raw []byte) error) (metadata metav1.ListMeta, err error) {
	body, err := r.request(o).SetHeader("Accept", accept).Stream(ctx)
	if err != nil {
		return metadata, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	return forEachItem(body, fn)
}

func (r resource) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	request := r.request(o)
	if r.metadata {
		request.SetHeader("Accept", watchMetadata+","+runtime.ContentTypeJSON+metadataItem)
	}
	return request.Watch(ctx)
}
