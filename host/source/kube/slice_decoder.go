package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"google.golang.org/protobuf/encoding/protowire"
)

// Tags (number and wire type) of the fields of an EndpointSlice that source.Slice reads: k8s.io/api/discovery/v1, core/v1 and
// k8s.io/apimachinery/pkg/apis/meta/v1, generated.proto.
const (
	varintField = uint64(protowire.VarintType)
	bytesField  = uint64(protowire.BytesType)

	sliceMetadata    = 1<<3 | bytesField
	sliceEndpoints   = 2<<3 | bytesField
	slicePorts       = 3<<3 | bytesField
	sliceAddressType = 4<<3 | bytesField

	metaName            = 1<<3 | bytesField
	metaNamespace       = 3<<3 | bytesField
	metaResourceVersion = 6<<3 | bytesField
	metaLabels          = 11<<3 | bytesField
	metaAnnotations     = 12<<3 | bytesField

	mapKey   = 1<<3 | bytesField
	mapValue = 2<<3 | bytesField

	portName     = 1<<3 | bytesField
	portProtocol = 2<<3 | bytesField
	portNumber   = 3<<3 | varintField

	endpointAddresses  = 1<<3 | bytesField
	endpointConditions = 2<<3 | bytesField
	endpointTargetRef  = 4<<3 | bytesField
	endpointNodeName   = 6<<3 | bytesField
	endpointZone       = 7<<3 | bytesField
	endpointHints      = 8<<3 | bytesField

	conditionReady       = 1<<3 | varintField
	conditionServing     = 2<<3 | varintField
	conditionTerminating = 3<<3 | varintField

	refKind      = 1<<3 | bytesField
	refNamespace = 2<<3 | bytesField
	refName      = 3<<3 | bytesField

	hintsForZones = 1<<3 | bytesField
	hintsForNodes = 2<<3 | bytesField
	hintName      = 1<<3 | bytesField
)

// sliceDecoder decodes EndpointSlices of a list, the largest part of a cluster's state, with few allocations: fields that
// source.Slice does not read are left out, strings that repeat are interned, and an object is valid until the next one.
type sliceDecoder struct {
	strings   *interner
	slice     discoveryv1.EndpointSlice
	endpoints []*endpointParts // one for each endpoint of the largest slice
}

// endpointParts is what an endpoint points to.
type endpointParts struct {
	address    [1]string
	node, zone string
	ref        corev1.ObjectReference
	hints      discoveryv1.EndpointHints
}

var yes, no = true, false // what conditions point to

func newSliceDecoder(s *interner) func(raw []byte) (any, error) {
	return (&sliceDecoder{strings: s}).decode
}

func (d *sliceDecoder) decode(raw []byte) (any, error) {
	d.slice = discoveryv1.EndpointSlice{Endpoints: d.slice.Endpoints[:0], Ports: d.slice.Ports[:0]}
	o := &d.slice
	err := forEachTag(raw, func(tag uint64, value []byte, _ uint64) error {
		switch tag {
		case sliceMetadata:
			return d.metadata(value)
		case sliceEndpoints:
			return d.endpoint(value)
		case slicePorts:
			return d.port(value)
		case sliceAddressType:
			o.AddressType = discoveryv1.AddressType(d.strings.internBytes(value))
		}
		return nil
	})
	return o, err
}

func (d *sliceDecoder) metadata(raw []byte) error {
	m := &d.slice.ObjectMeta
	return forEachTag(raw, func(tag uint64, value []byte, _ uint64) error {
		switch tag {
		case metaName:
			m.Name = string(value)
		case metaNamespace:
			m.Namespace = d.strings.internBytes(value)
		case metaResourceVersion:
			m.ResourceVersion = string(value)
		case metaLabels:
			return d.mapEntry(&m.Labels, value)
		case metaAnnotations:
			return d.mapEntry(&m.Annotations, value)
		}
		return nil
	})
}

func (d *sliceDecoder) mapEntry(m *map[string]string, raw []byte) error {
	var key, content string
	err := forEachTag(raw, func(tag uint64, value []byte, _ uint64) error {
		switch tag {
		case mapKey:
			key = d.strings.internBytes(value)
		case mapValue:
			content = string(value)
		}
		return nil
	})
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = content
	return err
}

func (d *sliceDecoder) port(raw []byte) error {
	var p discoveryv1.EndpointPort
	err := forEachTag(raw, func(tag uint64, value []byte, number uint64) error {
		switch tag {
		case portName:
			name := d.strings.internBytes(value)
			p.Name = &name
		case portProtocol:
			protocol := corev1.Protocol(d.strings.internBytes(value))
			p.Protocol = &protocol
		case portNumber:
			port := int32(number) //nolint:gosec // as the field is defined
			p.Port = &port
		}
		return nil
	})
	d.slice.Ports = append(d.slice.Ports, p)
	return err
}

func (d *sliceDecoder) endpoint(raw []byte) error {
	i := len(d.slice.Endpoints)
	if i == len(d.endpoints) {
		d.endpoints = append(d.endpoints, new(endpointParts))
	}
	parts := d.endpoints[i]
	var e discoveryv1.Endpoint
	err := forEachTag(raw, func(tag uint64, value []byte, _ uint64) error {
		switch tag {
		case endpointAddresses:
			if e.Addresses == nil { // the first one counts
				parts.address[0] = string(value)
				e.Addresses = parts.address[:]
			}
		case endpointConditions:
			return decodeConditions(&e.Conditions, value)
		case endpointTargetRef:
			if e.TargetRef == nil {
				parts.ref = corev1.ObjectReference{}
				e.TargetRef = &parts.ref
			}
			return d.targetRef(e.TargetRef, value)
		case endpointNodeName:
			parts.node = d.strings.internBytes(value)
			e.NodeName = &parts.node
		case endpointZone:
			parts.zone = d.strings.internBytes(value)
			e.Zone = &parts.zone
		case endpointHints:
			if e.Hints == nil {
				parts.hints = discoveryv1.EndpointHints{ForZones: parts.hints.ForZones[:0], ForNodes: parts.hints.ForNodes[:0]}
				e.Hints = &parts.hints
			}
			return d.hints(e.Hints, value)
		}
		return nil
	})
	d.slice.Endpoints = append(d.slice.Endpoints, e)
	return err
}

func decodeConditions(c *discoveryv1.EndpointConditions, raw []byte) error {
	return forEachTag(raw, func(tag uint64, _ []byte, number uint64) error {
		value := &no
		if number != 0 {
			value = &yes
		}
		switch tag {
		case conditionReady:
			c.Ready = value
		case conditionServing:
			c.Serving = value
		case conditionTerminating:
			c.Terminating = value
		}
		return nil
	})
}

func (d *sliceDecoder) targetRef(ref *corev1.ObjectReference, raw []byte) error {
	return forEachTag(raw, func(tag uint64, value []byte, _ uint64) error {
		switch tag {
		case refKind:
			ref.Kind = d.strings.internBytes(value)
		case refNamespace:
			ref.Namespace = d.strings.internBytes(value)
		case refName:
			ref.Name = string(value)
		}
		return nil
	})
}

func (d *sliceDecoder) hints(h *discoveryv1.EndpointHints, raw []byte) error {
	return forEachTag(raw, func(tag uint64, value []byte, _ uint64) error {
		var name string
		if tag != hintsForZones && tag != hintsForNodes {
			return nil
		}
		err := forEachTag(value, func(tag uint64, value []byte, _ uint64) error {
			if tag == hintName {
				name = d.strings.internBytes(value)
			}
			return nil
		})
		if tag == hintsForZones {
			h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: name})
		} else {
			h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: name})
		}
		return err
	})
}

// forEachTag calls fn with each field of a protobuf message that is a varint or has bytes, valid as long as raw.
func forEachTag(raw []byte, fn func(tag uint64, value []byte, number uint64) error) error {
	for len(raw) > 0 {
		field, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return fmt.Errorf("tag: %w", protowire.ParseError(n))
		}
		raw = raw[n:]
		var value []byte
		var number uint64
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(raw)
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(raw)
		default:
			n = protowire.ConsumeFieldValue(field, kind, raw)
		}
		if n < 0 {
			return fmt.Errorf("field %d: %w", field, protowire.ParseError(n))
		}
		raw = raw[n:]
		if err := fn(protowire.EncodeTag(field, kind), value, number); err != nil {
			return err
		}
	}
	return nil
}
