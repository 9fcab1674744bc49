package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// Requests a second, and at once, besides watches.
const requestRate, requestBurst = 100, 200

// clients are connections to the API server, by group.
type clients struct {
	sluice, core, discovery, leases, gateway rest.Interface
	config                                   *rest.Config
}

func newClients(connection kube.Connection) (*clients, error) {
	config, err := connection.Config()
	if err != nil {
		return nil, err
	}
	config.UserAgent = "sluice-controller/" + connection.Version
	config.QPS, config.Burst = requestRate, requestBurst
	return clientsOf(config)
}

func clientsOf(config *rest.Config) (_ *clients, err error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.ServiceList{}, &corev1.Pod{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, gatewayapi.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	for _, group := range []schema.GroupVersion{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion} {
		metav1.AddToGroupVersion(scheme, group)
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	out := &clients{config: config}
	for _, g := range []struct {
		group schema.GroupVersion
		path  string
		into  *rest.Interface
	}{{corev1.SchemeGroupVersion, "/api", &out.core}, {v1alpha1.GroupVersion, "/apis", &out.sluice},
		{discoveryv1.SchemeGroupVersion, "/apis", &out.discovery},
		{gatewayapi.GroupVersion, "/apis", &out.gateway}, {coordinationv1.SchemeGroupVersion, "/apis", &out.leases}} {
		of := rest.CopyConfig(config)
		of.GroupVersion, of.APIPath, of.NegotiatedSerializer = &g.group, g.path, codecs
		if *g.into, err = rest.RESTClientFor(of); err != nil {
			return nil, fmt.Errorf("API server %s: %w", config.Host, err)
		}
	}
	return out, nil
}

// write is a status of an object.
type write struct {
	name     model.ObjectName
	resource string
	object   runtime.Object // a copy with the status that it should have
	client   rest.Interface // nil: that of sluice.dev
	differs  bool           // from the status that it has
}

const writeTimeout = 10 * time.Second

// writeStatus writes the status of an object, unless that has changed meanwhile or is gone: then there is another sweep.
func (c *clients) writeStatus(ctx context.Context, w *write) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	request := cmp.Or(w.client, c.sluice).Put().NamespaceIfScoped(w.name.Name.Namespace, w.name.Name.Namespace != "").Resource(w.resource).Name(w.name.Name.Name).
		SubResource("status").Param("fieldManager", Name)
	if _, ok := w.object.(*gatewayapi.Route); ok { // whose Go type does not say which kind it is
		text, err := json.Marshal(w.object)
		if err != nil {
			return err
		}
		request = request.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text)
	} else {
		request = request.Body(w.object)
	}
	err := request.Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
