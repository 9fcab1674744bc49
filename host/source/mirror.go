//lint:file-ignore SA1019 Endpoints are deprecated, but older manifests hold them and clusters mirror them.

package source

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/model"
)

// MirrorController is the value of the label endpointslice.kubernetes.io/managed-by on slices that a cluster made
// from an Endpoints object.
const MirrorController = "endpointslicemirroring-controller.k8s.io"

// annotationLeader marks Endpoints that were used as a lock for leader election: they hold no endpoints.
const annotationLeader = "control-plane.alpha.kubernetes.io/leader"

// maxMirrored is how many addresses of a subset a cluster mirrors.
const maxMirrored = 1000

// Mirror converts an Endpoints object into the slices that a cluster's mirroring controller makes of it when its
// Service has no selector: one for each set of ports and each family. The caller knows about the selector.
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
				addr := p.subsetAddress(&list[j], fmt.Sprintf("%s.%s[%d].ip", field, part, j))
				if !addr.IsValid() {
					continue
				}
				s := mirrorSlice(&out, o, ports, model.FamilyOf(addr))
				s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
					Addr: addr, Node: deref(list[j].NodeName, ""), Pod: podName(list[j].TargetRef), Ready: ready, Serving: true,
				})
			}
		}
		add(sub.Addresses, "addresses", true)
		add(sub.NotReadyAddresses, "notReadyAddresses", false)
		if total := len(sub.Addresses) + len(sub.NotReadyAddresses); total > maxMirrored {
			p.add(field, "%d addresses: the first %d are mirrored, as a cluster does", total, maxMirrored)
		}
	}
	return out, p.list
}

// mirrorSlice finds the slice for ports and family, or begins it.
func mirrorSlice(all *[]*model.EndpointSlice, o *corev1.Endpoints, ports []model.SlicePort, f model.Family) *model.EndpointSlice {
	for _, s := range *all {
		if s.Family == f && slices.Equal(s.Ports, ports) {
			return s
		}
	}
	s := &model.EndpointSlice{
		// A slash cannot be in an object's name, so this never meets a real slice.
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

func (p *problems) subsetAddress(o *corev1.EndpointAddress, field string) netip.Addr {
	a, err := parseAddr(o.IP)
	if err == nil {
		err = checkEndpoint(a)
	}
	if err != nil {
		p.add(field, "%w", err)
		return netip.Addr{}
	}
	return a
}
