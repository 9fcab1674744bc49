package plan

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/service"
)

// kept is what was decided last for a Service with a policy, for people to ask about. There is an entry for every
// endpoint of the cluster where all Services have one, so what the cluster says of an endpoint is not kept with it.
type kept struct {
	decided   []Decided // without endpoints
	endpoints [][]keptEndpoint
}

// keptEndpoint is an endpoint as it was when it was decided about.
type keptEndpoint struct {
	addr [16]byte
	port uint16
	is   uint8
	v4   bool
}

// flags are what a keptEndpoint knows, by bit.
func flags(e *service.Endpoint) [8]*bool {
	return [...]*bool{&e.Ready, &e.Serving, &e.Terminating, &e.Local, &e.HintedZone, &e.HintedNode, &e.InCluster, &e.InLocal}
}

func keep(decided []Decided) *kept {
	k := &kept{decided: make([]Decided, len(decided)), endpoints: make([][]keptEndpoint, len(decided))}
	for i := range decided {
		k.decided[i] = decided[i]
		port := *decided[i].Port
		list := make([]keptEndpoint, len(port.Endpoints))
		for j := range list {
			e := &port.Endpoints[j]
			list[j] = keptEndpoint{addr: e.Addr.Addr().As16(), port: e.Addr.Port(), v4: e.Addr.Addr().Is4()}
			for bit, is := range flags(e) {
				if *is {
					list[j].is |= 1 << bit
				}
			}
		}
		port.Endpoints = nil
		k.decided[i].Port, k.endpoints[i] = &port, list
	}
	return k
}

// tell gives back what was kept, with what the slices say of the endpoints.
func (k *kept) tell(slices []*model.EndpointSlice) []Decided {
	said := map[netip.Addr]*model.SliceEndpoint{}
	for _, s := range slices {
		for i := range s.Endpoints {
			said[s.Endpoints[i].Addr] = &s.Endpoints[i]
		}
	}
	out := make([]Decided, len(k.decided))
	for i := range out {
		out[i] = k.decided[i]
		port := *k.decided[i].Port
		port.Endpoints = make([]service.Endpoint, len(k.endpoints[i]))
		for j, was := range k.endpoints[i] {
			e := &port.Endpoints[j]
			a := netip.AddrFrom16(was.addr)
			if was.v4 {
				a = a.Unmap()
			}
			e.Addr = netip.AddrPortFrom(a, was.port)
			if s := said[a]; s != nil {
				e.Node, e.Zone, e.Pod = s.Node, s.Zone, s.Pod
			}
			for bit, is := range flags(e) {
				*is = was.is&(1<<bit) != 0
			}
		}
		out[i].Port = &port
	}
	return out
}
