package kube

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// as is an API object as what it should be.
func as[O any](object any) (*O, error) {
	o, ok := object.(*O)
	if !ok {
		return nil, fmt.Errorf("the API server sent a %T instead of a %T", object, o)
	}
	return o, nil
}

func equal[T any](a, b *T) bool { return a == b || reflect.DeepEqual(a, b) }

func serviceKind() kind[model.Service] {
	return kind[model.Service]{
		title: "Service", example: &corev1.Service{}, same: equal[model.Service],
		convert: func(s *strings, object any) (*parcel[model.Service], error) {
			o, err := as[corev1.Service](object)
			if err != nil {
				return nil, err
			}
			v, _, problems := source.Service(o)
			s.service(v)
			return &parcel[model.Service]{model.Name{Namespace: s.one(o.Namespace), Name: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.Service) model.Change {
			return model.Change{Kind: model.ServiceKind, Name: n, Service: v}
		},
	}
}

func sliceKind() kind[model.EndpointSlice] {
	return kind[model.EndpointSlice]{
		title: "EndpointSlice", example: &discoveryv1.EndpointSlice{},
		same: func(a, b *model.EndpointSlice) bool { return a.Same(b) },
		convert: func(s *strings, object any) (*parcel[model.EndpointSlice], error) {
			o, err := as[discoveryv1.EndpointSlice](object)
			if err != nil {
				return nil, err
			}
			v, _, problems := source.Slice(o)
			s.slice(v)
			return &parcel[model.EndpointSlice]{model.Name{Namespace: s.one(o.Namespace), Name: o.Name}, v, problems}, nil
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
		title: "Node", example: &corev1.Node{}, same: equal[model.Node], change: nodeChange,
		convert: func(_ *strings, object any) (*parcel[model.Node], error) {
			o, err := as[corev1.Node](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.Node(o)
			return &parcel[model.Node]{model.Name{Name: o.Name}, v, problems}, nil
		},
	}
}

// otherNodeKind is a Node of which only zone and capacity are read: nothing else of it is a change.
func otherNodeKind() kind[model.Node] {
	return kind[model.Node]{
		title: "other Node", example: &corev1.Node{}, same: equal[model.Node], change: nodeChange,
		convert: func(s *strings, object any) (*parcel[model.Node], error) {
			o, err := as[corev1.Node](object)
			if err != nil {
				return nil, err
			}
			v, _ := source.Node(o) // what is wrong with it is for its own sluice to say
			small := &model.Node{Name: v.Name, Zone: s.one(v.Zone), MilliCPU: v.MilliCPU}
			return &parcel[model.Node]{model.Name{Name: o.Name}, small, nil}, nil
		},
	}
}

func cidrKind() kind[model.ServiceCIDR] {
	return kind[model.ServiceCIDR]{
		title: "ServiceCIDR", example: &networkingv1.ServiceCIDR{}, same: equal[model.ServiceCIDR],
		convert: func(_ *strings, object any) (*parcel[model.ServiceCIDR], error) {
			o, err := as[networkingv1.ServiceCIDR](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.ServiceCIDR(o)
			return &parcel[model.ServiceCIDR]{model.Name{Name: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.ServiceCIDR) model.Change {
			return model.Change{Kind: model.ServiceCIDRKind, Name: n, CIDR: v}
		},
	}
}
