package source

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Slice converts an EndpointSlice. A nil value comes with the reason to skip it; for SkipInvalid, see the problems.
func Slice(o *discoveryv1.EndpointSlice) (*model.EndpointSlice, Skip, []Problem) {
	if skip := skipLabels(o.Labels); skip != "" {
		return nil, skip, nil
	}
	svc := o.Labels[discoveryv1.LabelServiceName]
	if svc == "" {
		return nil, SkipNoService, nil
	}
	p := problems{object: "EndpointSlice " + o.Namespace + "/" + o.Name}
	s := &model.EndpointSlice{
		Name:    model.Name{Namespace: o.Namespace, Name: o.Name},
		Service: model.Name{Namespace: o.Namespace, Name: svc},
		Trigger: trigger(o.Annotations[corev1.EndpointsLastChangeTriggerTime]),
		Version: version(o.ResourceVersion),
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
		s.Family = model.IPv4
	case discoveryv1.AddressTypeIPv6:
		s.Family = model.IPv6
	case discoveryv1.AddressTypeFQDN:
		return nil, SkipFQDN, nil
	default:
		p.add("addressType", "%q is not IPv4, IPv6 or FQDN: the slice is not used", o.AddressType)
		return nil, SkipInvalid, p.all()
	}
	s.Ports = p.slicePorts(o.Ports)
	if n := len(o.Endpoints); n > 0 {
		s.Endpoints = make([]model.SliceEndpoint, 0, n) // exact capacity: hundreds of thousands of endpoints are kept
	}
	for i := range o.Endpoints {
		if e, ok := p.endpoint(&o.Endpoints[i], i, s); ok {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	if len(s.Endpoints) == 0 {
		s.Endpoints = nil
	}
	return s, "", p.all()
}

// slicePorts ignores ports without a name or a number: they mean "all ports", which no proxy serves.
func (p *problems) slicePorts(list []discoveryv1.EndpointPort) []model.SlicePort {
	type key struct {
		name  string
		proto model.Protocol
	}
	seen := map[key]int{}
	var out []model.SlicePort
	for i, ep := range list {
		if ep.Name == nil || ep.Port == nil || *ep.Port == 0 {
			continue
		}
		field := fmt.Sprintf("ports[%d]", i)
		proto, ok := p.protocol(field+".protocol", ep.Protocol)
		if !ok {
			continue
		}
		port, ok := p.port(field+".port", *ep.Port)
		if !ok || !p.portName(field+".name", *ep.Name) {
			continue
		}
		if j, dup := seen[key{*ep.Name, proto}]; dup {
			p.add(field+".name", "%q: ports[%d] has the same name and protocol; the first one is used", *ep.Name, j)
			continue
		}
		seen[key{*ep.Name, proto}] = i
		out = append(out, model.SlicePort{Name: *ep.Name, Protocol: proto, Port: port})
	}
	return out
}

// endpoint uses the first address only: further ones have no defined meaning (KEP-4974).
func (p *problems) endpoint(o *discoveryv1.Endpoint, i int, s *model.EndpointSlice) (model.SliceEndpoint, bool) {
	if len(o.Addresses) == 0 {
		p.add(fmt.Sprintf("endpoints[%d].addresses", i), "no address")
		return model.SliceEndpoint{}, false
	}
	a, err := parseAddress(o.Addresses[0], func(a netip.Addr) error {
		if err := checkEndpoint(a); err != nil {
			return err
		}
		if model.FamilyOf(a) != s.Family {
			return fmt.Errorf("%s is not of addressType %s", a, s.Family)
		}
		return nil
	})
	if err != nil {
		p.add(fmt.Sprintf("endpoints[%d].addresses[0]", i), "%w", err) // its name only here: there are many endpoints
		return model.SliceEndpoint{}, false
	}
	e := model.SliceEndpoint{
		Addr:        a,
		Node:        deref(o.NodeName, ""),
		Zone:        deref(o.Zone, ""),
		Ready:       deref(o.Conditions.Ready, true),
		Serving:     deref(o.Conditions.Serving, true),
		Terminating: deref(o.Conditions.Terminating, false),
		Pod:         podName(o.TargetRef, s.Name.Namespace),
	}
	if o.Hints != nil && len(o.Hints.ForZones)+len(o.Hints.ForNodes) > 0 {
		e.Hints = &model.Hints{}
		for _, z := range o.Hints.ForZones {
			e.Hints.Zones = append(e.Hints.Zones, z.Name)
		}
		for _, n := range o.Hints.ForNodes {
			e.Hints.Nodes = append(e.Hints.Nodes, n.Name)
		}
	}
	return e, true
}

// version parses a resourceVersion; 0 if it is none that can be compared.
func version(s string) uint64 {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// trigger parses the trigger time of a change, in Unix milliseconds; 0 if there is none. An invalid one counts as none and is not
// reported: it matters for a metric, and where two slices have the same Pod.
func trigger(annotation string) int64 {
	if annotation == "" {
		return 0
	}
	t, err := time.Parse(time.RFC3339Nano, annotation)
	if err != nil {
		return 0
	}
	return t.UnixMilli()
}
