package kube

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

// selector returns the filter of a request's selectors.
func selector(r *http.Request) func(object) bool {
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		panic(err)
	}
	namespace := ""
	if parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); len(parts) > 3 && parts[len(parts)-3] == "namespaces" {
		namespace = parts[len(parts)-2]
	}
	field := r.URL.Query().Get("fieldSelector")
	return func(o object) bool {
		if o == nil || namespace != "" && o.GetNamespace() != namespace || !byLabel.Matches(labels.Set(o.GetLabels())) {
			return false
		}
		switch {
		case field == "":
			return true
		case field == "spec.clusterIP!=None":
			return o.(*corev1.Service).Spec.ClusterIP != "None"
		case strings.HasPrefix(field, "metadata.name!="):
			return o.GetName() != strings.TrimPrefix(field, "metadata.name!=")
		case strings.HasPrefix(field, "metadata.name="):
			return o.GetName() == strings.TrimPrefix(field, "metadata.name=")
		}
		panic(field)
	}
}

func kindOf(o runtime.Object) (version, kind string) {
	switch v := o.(type) {
	case *gatewayapi.Route:
		return gatewayapi.GroupVersion.String(), v.Kind
	case *discoveryv1.EndpointSlice:
		return "discovery.k8s.io/v1", "EndpointSlice"
	case *networkingv1.ServiceCIDR:
		return "networking.k8s.io/v1", "ServiceCIDR"
	case *corev1.Node:
		return "v1", "Node"
	case *corev1.Pod:
		return "v1", "Pod"
	case *corev1.Namespace:
		return "v1", "Namespace"
	case *v1alpha1.EndpointLoad:
		return "sluice.dev/v1alpha1", "EndpointLoad"
	case *metav1.PartialObjectMetadata:
		return "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	return "v1", "Service"
}

func example(path string) object {
	return map[string]object{"services": &corev1.Service{}, "endpointslices": &discoveryv1.EndpointSlice{}, "nodes": &corev1.Node{},
		"pods": &corev1.Pod{}, "servicecidrs": &networkingv1.ServiceCIDR{}, "namespaces": &corev1.Namespace{}, "endpointloads": &v1alpha1.EndpointLoad{},
		"tcproutes": &gatewayapi.Route{TypeMeta: metav1.TypeMeta{Kind: "TCPRoute"}}, "udproutes": &gatewayapi.Route{TypeMeta: metav1.TypeMeta{Kind: "UDPRoute"}}}[path]
}

// view returns how a request sees objects: whole ones, or their metadata.
func view(r *http.Request) func(runtime.Object) runtime.Object {
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return typed
	}
	return func(o runtime.Object) runtime.Object {
		return typed(&metav1.PartialObjectMetadata{ObjectMeta: *o.(object).(interface{ GetObjectMeta() metav1.Object }).GetObjectMeta().(*metav1.ObjectMeta)})
	}
}

// typed returns a copy of an object with its TypeMeta, as on the wire.
func typed(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	version, kind := kindOf(o)
	o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind))
	return o
}

// protobufLists are the types of the lists that a fakeServer encodes in protobuf, by path.
var protobufLists = map[string]protobufLister{
	"services": &corev1.ServiceList{}, "endpointslices": &discoveryv1.EndpointSliceList{}, "nodes": &corev1.NodeList{},
	"nodes metadata": &metav1.PartialObjectMetadataList{},
}

type protobufLister interface {
	metav1.ListInterface
	runtime.Object
	Marshal() ([]byte, error)
}

// protobufList encodes a list of a type of protobufLists as on the wire.
func protobufList(t testing.TB, path string, items []runtime.Object, version int) []byte {
	list := protobufLists[path].DeepCopyObject().(protobufLister)
	list.SetResourceVersion(strconv.Itoa(version))
	raw, err := []byte(nil), meta.SetList(list, items)
	if err == nil {
		raw, err = list.Marshal()
	}
	if err == nil {
		raw, err = (&runtime.Unknown{TypeMeta: runtime.TypeMeta{Kind: reflect.TypeOf(list).Elem().Name()}, Raw: raw}).Marshal()
	}
	if err != nil {
		t.Error(err)
	}
	return append([]byte(protobufMagic), raw...)
}
