package kube

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/util/safefile"
	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// ErrNoCluster is returned when no API server is configured and the process is not in a Pod.
var ErrNoCluster = errors.New("no API server configured: not running in a Pod, and neither a kubeconfig nor a server address is set")

// Connection selects an API server and the credentials.
type Connection struct {
	// Kubeconfig is the path of a kubeconfig file; "": the service account of this Pod.
	Kubeconfig string
	// Context of the kubeconfig; "": its current one.
	Context string
	// Server overrides the address in the kubeconfig or in the Pod's environment.
	Server string
	// Version of this program, for the User-Agent header.
	Version string
}

// InCluster reports whether this process runs in a Pod of a cluster.
func InCluster() bool {
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
}

// Client is a connection to an API server, shared by all resources.
type Client struct {
	host     string
	requests *requestCounter
	peers    *peers

	core, discovery, networking, events, sluice, gateway rest.Interface
}

// maxKubeconfig is well above the size of a kubeconfig with embedded certificates, and of each file that it names.
const maxKubeconfig = 8 << 20

// Connect returns a client. It sends no request.
func Connect(c Connection) (*Client, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	config.UserAgent = "sluice/" + c.Version
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1 // no limit: a few watches, and Events, which have limits of their own
	config.Timeout = 0
	return newClient(config)
}

// Config returns the configuration of a client for the connection.
func (c Connection) Config() (*rest.Config, error) {
	switch {
	case c.Kubeconfig != "":
		config, err := c.readKubeconfig()
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
		}
		return config, nil
	case InCluster():
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("service account of this Pod: %w", err)
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

// readKubeconfig reads the kubeconfig file, and checks the files that it names: client-go reads them whole, again and again,
// and would wait for the writer of a FIFO.
func (c Connection) readKubeconfig() (*rest.Config, error) {
	text, err := safefile.Read(c.Kubeconfig, maxKubeconfig)
	if err != nil {
		return nil, pathError(err)
	}
	file, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	for _, cluster := range file.Clusters {
		cluster.LocationOfOrigin = c.Kubeconfig
	}
	for _, user := range file.AuthInfos {
		user.LocationOfOrigin = c.Kubeconfig
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, err
	}
	var paths []string
	if c.Context != "" && file.Contexts[c.Context] == nil {
		names := slices.Sorted(maps.Keys(file.Contexts))
		return nil, fmt.Errorf("no context %q%s; it has %s", c.Context, spelling.DidYouMean(c.Context, names), strings.Join(names, ", "))
	}
	if context := file.Contexts[cmp.Or(c.Context, file.CurrentContext)]; context != nil {
		if cluster := file.Clusters[context.Cluster]; cluster != nil {
			paths = append(paths, cluster.CertificateAuthority)
		}
		if user := file.AuthInfos[context.AuthInfo]; user != nil {
			paths = append(paths, user.TokenFile, user.ClientCertificate, user.ClientKey)
		}
	}
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := safefile.Check(path, maxKubeconfig); err != nil {
			return nil, err
		}
	}
	overrides := clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Server}}
	return clientcmd.NewNonInteractiveClientConfig(*file, c.Context, &overrides, nil).ClientConfig()
}

// pathError removes the file's name from an error whose prefix names it.
func pathError(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func newClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	core, discovery := corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion
	networking, events := networkingv1.SchemeGroupVersion, eventsv1.SchemeGroupVersion
	// Only the types that are used: client-go's whole scheme adds 16 MB to the binary and 11 MiB to resident memory.
	scheme.AddKnownTypes(core, &corev1.Service{}, &corev1.ServiceList{}, &corev1.Node{}, &corev1.NodeList{}, &corev1.Pod{}, &corev1.PodList{})
	scheme.AddKnownTypes(discovery, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	scheme.AddKnownTypes(networking, &networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{})
	scheme.AddKnownTypes(events, &eventsv1.Event{})
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, gatewayapi.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	for _, group := range []schema.GroupVersion{core, discovery, networking, events} {
		metav1.AddToGroupVersion(scheme, group)
	}
	metav1.AddMetaToScheme(scheme) // PartialObjectMetadata
	c := &Client{host: config.Host, requests: &requestCounter{counts: map[RequestCount]uint64{}}, peers: &peers{changed: make(chan struct{}, 1)}}
	c.peers.watch(config)
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
		{networking, "/apis", &c.networking}, {events, "/apis", &c.events}, {v1alpha1.GroupVersion, "/apis", &c.sluice},
		{gatewayapi.GroupVersion, "/apis", &c.gateway},
	} {
		groupConfig := rest.CopyConfig(config)
		groupConfig.GroupVersion, groupConfig.APIPath, groupConfig.NegotiatedSerializer = &g.group, g.path, codecs
		if g.group == v1alpha1.GroupVersion || g.group == gatewayapi.GroupVersion { // custom resources have no other encoding
			groupConfig.ContentType, groupConfig.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
		}
		if *g.into, err = rest.RESTClientForConfigAndClient(groupConfig, client); err != nil {
			return nil, fmt.Errorf("API server %s: %w", config.Host, err)
		}
	}
	return c, nil
}

// Server returns the address of the API server.
func (c *Client) Server() string { return c.host }
