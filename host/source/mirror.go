//lint:file-ignore SA1019 Endpoints are deprecated, but older manifests contain them and clusters mirror them.

package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// MirrorController is the value of the label endpointslice.kubernetes.io/managed-by on slices that a cluster has mirrored
// from an Endpoints object.
const MirrorController = "endpointslicemirroring-controller.k8s.io"

// annotationLeader marks Endpoints that serve as a lock for leader election and have no endpoints.
const annotationLeader = "control-plane.alpha.kubernetes.io/leader"

// maxMirrored is how many addresses of a subset the mirroring controller copies.
const maxMirrored = 1000

// Mirror converts an Endpoints object into slices as the mirroring controller does: one for each set of ports and family.
// The caller must check that the Service has no selector.
func Mirror(o *corev1.Endpoints) ([]*model.EndpointSlice, []Problem) {
	_, leader := o.Annotations[annotationLeader]
	if leader || o.Labels[discoveryv1.LabelSkipMirror] == "true" || skipLabels(o.Labels) != "" {
		return nil, nil
	}
	p := problems{object: "Endpoints " + o.Namespace + "/" + o.Name}
	var out []*model.EndpointSlice
	for i := range o.Subsets {
		sub := &o.Subsets[i]
		field := fmt.Sprintf("subsets[%d]", i)
		ports := p.subsetPorts(sub.Ports, field)
		n := 0
		add := func(list []corev1.EndpointAddress, part string, ready bool) {
			for j := range list {
				if n++; n > maxMirrored {
					return
				}
				addr, ok := p.address(fmt.Sprintf("%s.%s[%d].ip", field, part, j), list[j].IP, checkEndpoint)
				if !ok {
					continue
				}
				s := mirrorSlice(&out, o, ports, model.FamilyOf(addr))
				s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
					Addr: addr, Node: deref(list[j].NodeName, ""), Pod: podName(list[j].TargetRef, o.Namespace), Ready: ready, Serving: true,
				})
			}
		}
		add(sub.Addresses, "addresses", true)
		add(sub.NotReadyAddresses, "notReadyAddresses", false)
		if total := len(sub.Addresses) + len(sub.NotReadyAddresses); total > maxMirrored {
			p.add(field, "%d addresses: only the first %d are mirrored", total, maxMirrored)
		}
	}
	return out, p.all()
}

// mirrorSlice returns the slice for ports and family, and adds it if there is none.
func mirrorSlice(all *[]*model.EndpointSlice, o *corev1.Endpoints, ports []model.SlicePort, f model.Family) *model.EndpointSlice {
	for _, s := range *all {
		if s.Family == f && slices.Equal(s.Ports, ports) {
			return s
		}
	}
	s := &model.EndpointSlice{
		// Object names cannot contain a slash, so this never collides with a real slice.
		Name:    model.Name{Namespace: o.Namespace, Name: fmt.Sprintf("%s/mirror-%d", o.Name, len(*all))},
		Service: model.Name{Namespace: o.Namespace, Name: o.Name},
		Family:  f,
		Ports:   ports,
	}
	*all = append(*all, s)
	return s
}

func (p *problems) subsetPorts(list []corev1.EndpointPort, field string) []model.SlicePort {
	var out []model.SlicePort
	for j, ep := range list {
		at := fmt.Sprintf("%s.ports[%d]", field, j)
		proto, ok := p.protocol(at+".protocol", &ep.Protocol)
		if !ok {
			continue
		}
		port, ok := p.port(at+".port", ep.Port)
		if !ok || !p.portName(at+".name", ep.Name) {
			continue
		}
		out = append(out, model.SlicePort{Name: ep.Name, Protocol: proto, Port: port})
	}
	return out
}
