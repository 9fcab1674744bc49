package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/model"
)

// size is a cluster of Services with as many endpoints each.
type size struct{ services, endpoints int }

func (s size) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

func serviceName(i int) model.Name {
	return model.Name{Namespace: "bench", Name: fmt.Sprint("svc-", i)}
}

// service has one TCP port. A label binds it to the policy where there is one.
func service(i int) model.Change {
	n := serviceName(i)
	return model.Change{Kind: model.ServiceKind, Name: n, Service: &model.Service{
		Name: n, Labels: map[string]string{"app": n.Name},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)})},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}}
}

// slice has the Service's endpoints; change is the number of the one that has been replaced so far.
func slice(i, endpoints, change int) model.Change {
	n := serviceName(i)
	s := &model.EndpointSlice{
		Name: n, Service: n, Family: model.IPv4,
		Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: make([]model.SliceEndpoint, endpoints),
	}
	for j := range s.Endpoints {
		id := i*endpoints + j
		addr := netip.AddrFrom4([4]byte{11, byte(id >> 16), byte(id >> 8), byte(id)})
		if j == 0 && change > 0 {
			addr = netip.AddrFrom4([4]byte{12, byte(change >> 16), byte(change >> 8), byte(change)})
		}
		s.Endpoints[j] = model.SliceEndpoint{
			Addr: addr, Node: nodeName(j), Zone: zoneName(j), Ready: true, Serving: true,
		}
	}
	return model.Change{Kind: model.SliceKind, Name: n, Slice: s}
}

const nodes, zones = 30, 3

func nodeName(j int) string { return fmt.Sprint("node-", j%nodes) }
func zoneName(j int) string { return fmt.Sprint("zone-", j%zones) }

// cluster is the whole state, Synced at its end.
func cluster(s size) []model.Change {
	out := make([]model.Change, 0, 2*s.services+nodes+1)
	for j := range nodes {
		n := model.Name{Name: nodeName(j)}
		out = append(out, model.Change{Kind: model.NodeKind, Name: n, Node: &model.Node{
			Name: n.Name, Zone: zoneName(j), MilliCPU: 8000, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(j + 1)})},
		}})
	}
	for i := range s.services {
		out = append(out, service(i), slice(i, s.endpoints, 0))
	}
	return append(out, model.Change{Kind: model.Synced})
}

// feed is a source that emits what it is sent.
type feed chan []model.Change

// Run implements engine.Source.
func (f feed) Run(ctx context.Context, emit func([]model.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-f:
			emit(c)
		}
	}
}
