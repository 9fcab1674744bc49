package plugintest

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// nodePort makes the external traffic policy count.
const nodePort = 30080

var clusterIPs = map[model.Family]netip.Addr{
	model.IPv4: netip.MustParseAddr("10.96.0.10"), model.IPv6: netip.MustParseAddr("fd96::10"),
}

func serviceName(c *scenariotest.Cluster) model.Name {
	return model.Name{Namespace: c.Service.Namespace, Name: c.Service.Name}
}

// snapshot returns the objects of a cluster.
func snapshot(c *scenariotest.Cluster) *model.Snapshot {
	s := model.NewSnapshot()
	apply := func(change model.Change) { s.Apply(change) }
	svc, name, family := &c.Service, serviceName(c), model.Family(c.Service.Family)
	port := model.ServicePort{Name: svc.Port, Protocol: model.Protocol(svc.Protocol), Port: svc.Number}
	if svc.ExternalLocal {
		port.NodePort = nodePort
	}
	apply(model.Change{Kind: model.ServiceKind, Name: name, Service: &model.Service{
		Name: name, Labels: svc.Labels, Annotations: model.PackAnnotations(svc.Annotations, nil), ClusterIPs: []netip.Addr{clusterIPs[family]},
		InternalLocal: svc.InternalLocal, ExternalLocal: svc.ExternalLocal, Affinity: svc.Affinity, Ports: []model.ServicePort{port},
	}})
	apply(model.Change{Kind: model.NamespaceKind, Name: model.Name{Namespace: name.Namespace}, Namespace: &model.Namespace{Name: name.Namespace, Labels: svc.NamespaceLabels}})
	for i := range c.Nodes {
		n := &c.Nodes[i]
		apply(model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: &model.Node{
			Name: n.Name, Zone: n.Zone, MilliCPU: int64(n.MilliCPU), Ready: n.Ready, Labels: n.Labels,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2 + byte(i>>8), byte(i)})},
		}})
	}
	slice := &model.EndpointSlice{
		Name: model.Name{Namespace: name.Namespace, Name: name.Name + "-1"}, Service: name, Family: family,
		Ports: []model.SlicePort{{Name: svc.Port, Protocol: port.Protocol, Port: 8080}},
	}
	load := &model.EndpointLoad{Values: map[netip.Addr]map[string]string{}}
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		load.Values[e.Addr.Addr()] = e.Load
		slice.Endpoints = append(slice.Endpoints, model.SliceEndpoint{
			Addr: e.Addr.Addr(), Node: e.Node, Zone: e.Zone, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
			Hints: &model.Hints{Zones: e.ZoneHints, Nodes: e.NodeHints}, Pod: e.Name,
		})
		pod := model.Name{Namespace: name.Namespace, Name: e.Name}
		apply(model.Change{Kind: model.PodKind, Name: pod, Pod: &model.Pod{
			Name: pod, Labels: e.Labels, Annotations: e.Annotations, MilliCPU: e.MilliCPU,
		}})
	}
	apply(model.Change{Kind: model.LoadKind, Name: name, Load: load})
	apply(model.Change{Kind: model.SliceKind, Name: slice.Name, Slice: slice})
	apply(model.Change{Kind: model.Synced})
	return s
}
