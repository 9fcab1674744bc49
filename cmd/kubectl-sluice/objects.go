package main

import (
	"context"
	"fmt"
	"net/url"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// tokenSeconds is how long a token is valid: the least that the API server issues.
const tokenSeconds = 600

// objects reads objects of the cluster. client-go's clientset has all API groups, and makes the program twice as large.
type objects struct{ client rest.Interface }

func newObjects(config *rest.Config) (*objects, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.NamespaceList{}, &corev1.NodeList{}, &corev1.Pod{}, &corev1.PodList{}, &corev1.ServiceList{})
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenRequest{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", config.Host, err)
	}
	return &objects{client}, nil
}

// list reads a page of the objects of a resource, such as "pods", in a namespace; "" means all namespaces.
func (o *objects) list(ctx context.Context, resource, namespace string, options metav1.ListOptions, into runtime.Object) error {
	return o.client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(into)
}

func (o *objects) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	return p, o.client.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(p)
}

// token requests a token of a service account, for an audience.
func (o *objects) token(ctx context.Context, namespace, account, audience string) (string, error) {
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds}}
	err := o.client.Post().Namespace(namespace).Resource("serviceaccounts").Name(account).SubResource("token").Body(request).Do(ctx).Into(request)
	if err != nil {
		return "", fmt.Errorf("create a token: %w", err)
	}
	return request.Status.Token, nil
}

// portForward returns the address that forwards ports of a Pod.
func (o *objects) portForward(namespace, pod string) *url.URL {
	return o.client.Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
}
