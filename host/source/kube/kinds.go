package kube

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// converted is an API object after its conversion.
type converted[T any] struct {
	name     model.Name
	value    *T // nil: skipped, or nothing in it is usable
	problems []source.Problem
}

// hasErrors reports whether a part of the object could not be used.
func (p *converted[T]) hasErrors() bool {
	for i := range p.problems {
		if !p.problems[i].Warning {
			return true
		}
	}
	return false
}

// GetObjectKind and DeepCopyObject make it a runtime.Object, so that client-go's lists may consist of them.
func (p *converted[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Values are never modified.
func (p *converted[T]) DeepCopyObject() runtime.Object { c := *p; return &c }

// kind describes a kind of object to its store.
type kind[T any] struct {
	name      string // the Kind
	prototype any    // an empty API object, for the reflector
	// decoder returns what decodes items of a list from protobuf, for convert, valid until the next one; nil: lists are not read
	// item by item.
	decoder func(*interner) func(raw []byte) (any, error)
	convert func(s *interner, object any) (*converted[T], error)
	same    func(a, b *T) bool
	change  func(model.Name, *T) model.Change
	narrow  func(*T) *T      // returns the value without what nothing needs; nil: all is needed
	forget  func(model.Name) // an object is gone; may be nil
}

// as asserts the type of an API object.
func as[O any](object any) (*O, error) {
	o, ok := object.(*O)
	if !ok {
		return nil, fmt.Errorf("the API server sent a %T, want a %T", object, o)
	}
	return o, nil
}

// newDecoder returns a decoder of whole API objects.
func newDecoder[O any, P interface {
	*O
	Unmarshal(raw []byte) error
}](*interner) func(raw []byte) (any, error) {
	return func(raw []byte) (any, error) {
		o := P(new(O))
		return o, o.Unmarshal(raw)
	}
}

func equal[T any](a, b *T) bool { return a == b || reflect.DeepEqual(a, b) }

func serviceKind(annotations *serviceAnnotations) kind[model.Service] {
	return kind[model.Service]{
		narrow: annotations.narrow, forget: annotations.forget,
		name: "Service", prototype: &corev1.Service{}, decoder: newDecoder[corev1.Service], same: equal[model.Service],
		convert: func(s *interner, object any) (*converted[model.Service], error) {
			o, err := as[corev1.Service](object)
			if err != nil {
				return nil, err
			}
			v, _, problems := source.Service(o)
			if s.internService(v); v != nil {
				annotations.take(v)
			}
			return &converted[model.Service]{model.Name{Namespace: s.intern(o.Namespace), Name: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.Service) model.Change {
			return model.Change{Kind: model.ServiceKind, Name: n, Service: v}
		},
	}
}

func sliceKind() kind[model.EndpointSlice] {
	return kind[model.EndpointSlice]{
		name: "EndpointSlice", prototype: &discoveryv1.EndpointSlice{}, decoder: newSliceDecoder,
		same: func(a, b *model.EndpointSlice) bool { return a.SameContent(b) },
		convert: func(s *interner, object any) (*converted[model.EndpointSlice], error) {
			o, err := as[discoveryv1.EndpointSlice](object)
			if err != nil {
				return nil, err
			}
			v, _, problems := source.Slice(o)
			s.internSlice(v)
			return &converted[model.EndpointSlice]{model.Name{Namespace: s.intern(o.Namespace), Name: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.EndpointSlice) model.Change {
			return model.Change{Kind: model.SliceKind, Name: n, Slice: v}
		},
	}
}

func nodeChange(n model.Name, v *model.Node) model.Change {
	return model.Change{Kind: model.NodeKind, Name: n, Node: v}
}

func nodeKind() kind[model.Node] {
	return kind[model.Node]{
		name: "Node", prototype: &corev1.Node{}, same: equal[model.Node], change: nodeChange,
		convert: func(_ *interner, object any) (*converted[model.Node], error) {
			o, err := as[corev1.Node](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.Node(o)
			return &converted[model.Node]{model.Name{Name: o.Name}, v, problems}, nil
		},
	}
}

// otherNodeKind reads only zone, CPU and readiness of a Node, and its labels, of which the caller keeps those that policies see:
// nothing else counts as a change.
func otherNodeKind() kind[model.Node] {
	return kind[model.Node]{
		name: "other Node", prototype: &corev1.Node{}, same: equal[model.Node], change: nodeChange,
		convert: func(s *interner, object any) (*converted[model.Node], error) {
			o, err := as[corev1.Node](object)
			if err != nil {
				return nil, err
			}
			v, _ := source.Node(o) // its own node's sluice reports problems
			small := &model.Node{Name: v.Name, Zone: s.intern(v.Zone), Addresses: v.Addresses, PodCIDRs: v.PodCIDRs, MilliCPU: v.MilliCPU, Ready: v.Ready, Labels: v.Labels}
			return &converted[model.Node]{model.Name{Name: o.Name}, small, nil}, nil
		},
	}
}

func cidrKind() kind[model.ServiceCIDR] {
	return kind[model.ServiceCIDR]{
		name: "ServiceCIDR", prototype: &networkingv1.ServiceCIDR{}, same: equal[model.ServiceCIDR],
		convert: func(_ *interner, object any) (*converted[model.ServiceCIDR], error) {
			o, err := as[networkingv1.ServiceCIDR](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.ServiceCIDR(o)
			return &converted[model.ServiceCIDR]{model.Name{Name: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.ServiceCIDR) model.Change {
			return model.Change{Kind: model.ServiceCIDRKind, Name: n, CIDR: v}
		},
	}
}

// loadKind reads fields of the load that endpoints report. Services without any of them are left out.
func loadKind(fields *labelsToRead) kind[model.EndpointLoad] {
	return kind[model.EndpointLoad]{
		name: "EndpointLoad", prototype: &v1alpha1.EndpointLoad{}, same: equal[model.EndpointLoad],
		convert: func(_ *interner, object any) (*converted[model.EndpointLoad], error) {
			o, err := as[v1alpha1.EndpointLoad](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.EndpointLoad(o, fields.reading)
			if len(v.Values) == 0 {
				v = nil
			}
			return &converted[model.EndpointLoad]{model.Name{Namespace: o.Namespace, Name: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.EndpointLoad) model.Change {
			return model.Change{Kind: model.LoadKind, Name: n, Load: v}
		},
	}
}

// namespaceKind reads labels of namespaces. Namespaces without any of them are left out.
func namespaceKind(labels *labelsToRead) kind[model.Namespace] {
	return kind[model.Namespace]{
		name: "Namespace", prototype: &metav1.PartialObjectMetadata{}, same: equal[model.Namespace],
		convert: func(s *interner, object any) (*converted[model.Namespace], error) {
			o, err := as[metav1.PartialObjectMetadata](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.Namespace(&o.ObjectMeta, labels.reading)
			if v.Labels == nil {
				return &converted[model.Namespace]{model.Name{Namespace: o.Name}, nil, problems}, nil
			}
			for name, value := range v.Labels {
				v.Labels[name] = s.intern(value)
			}
			return &converted[model.Namespace]{model.Name{Namespace: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.Namespace) model.Change {
			return model.Change{Kind: model.NamespaceKind, Name: n, Namespace: v}
		},
	}
}

func podChange(n model.Name, v *model.Pod) model.Change {
	return model.Change{Kind: model.PodKind, Name: n, Pod: v}
}

// podKind reads the declared keys of Pods: of whole ones, or of their metadata.
func podKind(spec *podWatchSpec) kind[model.Pod] {
	keys := &spec.keys
	k := kind[model.Pod]{
		name: "Pod of " + spec.namespace + " " + spec.selector, same: equal[model.Pod], change: podChange,
		prototype: &metav1.PartialObjectMetadata{},
		convert: func(s *interner, object any) (*converted[model.Pod], error) {
			o, err := as[metav1.PartialObjectMetadata](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.PodMetadata(&o.ObjectMeta, keys)
			return convertedPod(s, spec, v, problems)
		},
	}
	if keys.Full {
		k.prototype = &corev1.Pod{}
		k.convert = func(s *interner, object any) (*converted[model.Pod], error) {
			o, err := as[corev1.Pod](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.Pod(o, keys)
			return convertedPod(s, spec, v, problems)
		}
	}
	return k
}

func convertedPod(s *interner, spec *podWatchSpec, v *model.Pod, problems []source.Problem) (*converted[model.Pod], error) {
	if v.Name.Namespace != spec.namespace {
		return nil, fmt.Errorf("the API server sent Pod %s for namespace %s", v.Name, spec.namespace)
	}
	s.internPod(v)
	return &converted[model.Pod]{v.Name, v, problems}, nil
}
