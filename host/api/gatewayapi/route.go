// Package gatewayapi has what sluice reads of TCPRoutes and UDPRoutes, gateway.networking.k8s.io/v1, and the status that it
// writes. The kinds and their CustomResourceDefinitions are those of the cluster.
package gatewayapi

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds.
var GroupVersion = schema.GroupVersion{Group: "gateway.networking.k8s.io", Version: "v1"}

// Route is a TCPRoute or a UDPRoute: they have the same fields.
type Route struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              RouteSpec   `json:"spec"`
	Status            RouteStatus `json:"status,omitempty"`
}

// RouteSpec is what is wanted.
type RouteSpec struct {
	ParentRefs         []ParentRef `json:"parentRefs,omitempty"`
	UseDefaultGateways string      `json:"useDefaultGateways,omitempty"` // not for Services
	Rules              []Rule      `json:"rules,omitempty"`
}

// ParentRef is an object whose connections the route splits. The defaults are those of the schema: a Gateway.
type ParentRef struct {
	Group       *string `json:"group,omitempty"`
	Kind        *string `json:"kind,omitempty"`
	Namespace   *string `json:"namespace,omitempty"`
	Name        string  `json:"name"`
	SectionName *string `json:"sectionName,omitempty"`
	Port        *int32  `json:"port,omitempty"`
}

// Rule is the backends.
type Rule struct {
	Name        string       `json:"name,omitempty"`
	BackendRefs []BackendRef `json:"backendRefs,omitempty"`
}

// BackendRef is a backend with its share. The defaults are those of the schema: a Service, weight 1.
type BackendRef struct {
	Group     *string `json:"group,omitempty"`
	Kind      *string `json:"kind,omitempty"`
	Namespace *string `json:"namespace,omitempty"`
	Name      string  `json:"name"`
	Port      *int32  `json:"port,omitempty"`
	Weight    *int32  `json:"weight,omitempty"`
}

// RouteStatus has an entry for each parent, by all controllers. Those of others stay as they are, with fields that are not known
// here.
type RouteStatus struct {
	Parents []runtime.RawExtension `json:"parents,omitempty"`
}

// ParentStatus is an entry of RouteStatus.
type ParentStatus struct {
	ParentRef      ParentRef          `json:"parentRef"`
	ControllerName string             `json:"controllerName"`
	Conditions     []metav1.Condition `json:"conditions,omitempty"`
}

// DeepCopyObject implements runtime.Object. What pointers of a spec point to is never modified.
func (r *Route) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// DeepCopy returns a copy.
func (r *Route) DeepCopy() *Route {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.ParentRefs = slices.Clone(r.Spec.ParentRefs)
	out.Spec.Rules = slices.Clone(r.Spec.Rules)
	for i := range out.Spec.Rules {
		out.Spec.Rules[i].BackendRefs = slices.Clone(r.Spec.Rules[i].BackendRefs)
	}
	out.Status.Parents = slices.Clone(r.Status.Parents)
	return &out
}

// RouteList is a list of one kind.
type RouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Route `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *RouteList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Route, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopy()
	}
	return &out
}

// Kinds.
const (
	TCPRouteKind = "TCPRoute"
	UDPRouteKind = "UDPRoute"
)

// AddToScheme adds the kinds to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	for _, kind := range []string{TCPRouteKind, UDPRouteKind} {
		s.AddKnownTypeWithName(GroupVersion.WithKind(kind), &Route{})
		s.AddKnownTypeWithName(GroupVersion.WithKind(kind+"List"), &RouteList{})
	}
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
