package kube

import (
	"context"
	"errors"

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
	labels      string
	fields      string
	optional    bool   // continue when the server does not have the resource or forbids it
	consequence string // of continuing without it, for the log
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

func (c *Client) otherNodes(exceptNode string) resource {
	return resource{name: "other Nodes", label: "nodes", client: c.core, path: "nodes", optional: true,
		fields: fields.OneTermNotEqualSelector("metadata.name", exceptNode).String(), consequence: "policies that need them are not evaluated"}
}

func (c *Client) serviceCIDRs() resource {
	return resource{name: "ServiceCIDRs", label: "servicecidrs", client: c.networking, path: "servicecidrs", optional: true,
		consequence: "connections to unallocated cluster IPs are not dropped"}
}

// request returns a GET with the resource's selectors. Retries are left to the caller: the client would retry ten times
// in ten seconds before it returns an error.
func (r resource) request(o metav1.ListOptions) *rest.Request {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
	return r.client.Get().Resource(r.path).MaxRetries(0).VersionedParams(&o, metav1.ParameterCodec)
}

func (r resource) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return r.request(o).Do(ctx).Get()
}

// nodeMetadata requests a list of metadata: a Node's status is most of its size.
const nodeMetadata = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// streamItems lists in protobuf and calls fn with each item as it arrives.
func (r resource) streamItems(ctx context.Context, accept string, o metav1.ListOptions, fn func(raw []byte) error) (err error) {
	body, err := r.request(o).SetHeader("Accept", accept).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	return forEachItem(body, fn)
}

func (r resource) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return r.request(o).Watch(ctx)
}
