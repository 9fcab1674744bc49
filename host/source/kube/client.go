package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// ErrNoCluster is when nothing says which API server to ask.
var ErrNoCluster = errors.New("not in a cluster, and neither a kubeconfig nor a server's address is given")

// Connection says which API server, and who asks.
type Connection struct {
	// Kubeconfig is a file. "": the service account of the Pod that this is.
	Kubeconfig string
	// Server is the address, in the place of the one that the kubeconfig or the Pod's environment names.
	Server string
	// Version of this program, for the user agent.
	Version string
}

// InCluster tells whether this process is in a Pod of a cluster.
func InCluster() bool {
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
}

// Client is a connection to an API server: one, for all kinds.
type Client struct {
	host                                string
	requests                            *requestCounter
	core, discovery, networking, events rest.Interface
}

// maxKubeconfig is far more than a kubeconfig with its certificates is.
const maxKubeconfig = 8 << 20

// Connect makes a client. It asks the server nothing yet.
func Connect(c Connection) (*Client, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	config.UserAgent = "sluice/" + c.Version
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1 // a few watches, and events that have limits of their own
	config.Timeout = 0
	return newClient(config)
}

func (c Connection) config() (*rest.Config, error) {
	switch {
	case c.Kubeconfig != "":
		if err := strictyaml.CheckRegularFile(c.Kubeconfig, maxKubeconfig); err != nil {
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Server}}).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
		}
		return config, nil
	case InCluster():
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("the Pod's service account: %w", err)
		}
		if c.Server != "" {
			config.Host = c.Server
		}
		return config, nil
	case c.Server != "":
		return &rest.Config{Host: c.Server}, nil
	}
	return nil, ErrNoCluster
}

func newClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	core, discovery := corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion
	networking, events := networkingv1.SchemeGroupVersion, eventsv1.SchemeGroupVersion
	// Only what is used: the whole of client-go's scheme costs every start and every byte of the binary.
	scheme.AddKnownTypes(core, &corev1.Service{}, &corev1.ServiceList{}, &corev1.Node{}, &corev1.NodeList{})
	scheme.AddKnownTypes(discovery, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	scheme.AddKnownTypes(networking, &networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{})
	scheme.AddKnownTypes(events, &eventsv1.Event{})
	for _, group := range []schema.GroupVersion{core, discovery, networking, events} {
		metav1.AddToGroupVersion(scheme, group)
	}
	c := &Client{host: config.Host, requests: &requestCounter{counts: map[RequestCount]uint64{}}}
	config.Wrap(func(t http.RoundTripper) http.RoundTripper { return countingTransport{limitTransport{t}, c.requests} })
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", config.Host, err)
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	for _, g := range []struct {
		group schema.GroupVersion
		path  string
		into  *rest.Interface
	}{
		{core, "/api", &c.core}, {discovery, "/apis", &c.discovery},
		{networking, "/apis", &c.networking}, {events, "/apis", &c.events},
	} {
		groupConfig := rest.CopyConfig(config)
		groupConfig.GroupVersion, groupConfig.APIPath, groupConfig.NegotiatedSerializer = &g.group, g.path, codecs
		if *g.into, err = rest.RESTClientForConfigAndClient(groupConfig, client); err != nil {
			return nil, fmt.Errorf("API server %s: %w", config.Host, err)
		}
	}
	return c, nil
}

// Server is the address that is asked.
func (c *Client) Server() string { return c.host }

// resource is what is listed and watched of a kind.
type resource struct {
	name        string // of the kind, in the plural
	label       string // of metrics
	client      rest.Interface
	path        string
	labels      string
	fields      string
	optional    bool   // go on when the server has not, or does not show, such things
	consequence string // what going on without costs
}

// serviceSelector are objects that no other proxy and nobody at all is to serve (host/RULES.md, rule 1).
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

func (c *Client) otherNodes(than string) resource {
	return resource{name: "the other Nodes", label: "nodes", client: c.core, path: "nodes", optional: true,
		fields: fields.OneTermNotEqualSelector("metadata.name", than).String(), consequence: "policies that want to know them are not asked"}
}

func (c *Client) serviceCIDRs() resource {
	return resource{name: "ServiceCIDRs", label: "servicecidrs", client: c.networking, path: "servicecidrs", optional: true,
		consequence: "connections to addresses of no Service are not dropped"}
}

// request asks for what is selected. Trying again is left to the caller: the client would do so ten times in ten seconds
// before it says a word.
func (r resource) request(o metav1.ListOptions) *rest.Request {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
	return r.client.Get().Resource(r.path).MaxRetries(0).VersionedParams(&o, metav1.ParameterCodec)
}

func (r resource) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return r.request(o).Do(ctx).Get()
}

// nodeMetadata asks for a list of metadata, as what a Node's status says is most of it.
const nodeMetadata = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// streamItems lists in protobuf, and gives the items one by one as they come.
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
