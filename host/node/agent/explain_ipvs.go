package agent

import (
	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// AddIPVSStats adds the connections of mode ipvs to an explanation with the weights in the kernel.
func AddIPVSStats(x *api.Explanation, stats []backend.ServerStats) {
	for i := range stats {
		c := &stats[i]
		if c.Pool == "" || c.Owner.Service.String() != x.Service {
			continue
		}
		for j := range x.Pools {
			p := &x.Pools[j]
			if (p.Pool == "local") != (c.Pool == backend.PoolOutside) && c.Pool != backend.PoolAll {
				continue
			}
			for e := range p.Endpoints {
				addConnections(&p.Endpoints[e], c)
			}
		}
	}
}

// addConnections adds the connections of an endpoint through a virtual server, if that has it.
func addConnections(e *api.Endpoint, c *backend.ServerStats) {
	for i := range e.Kernel {
		if e.Kernel[i].Frontend != c.Frontend.String() {
			continue
		}
		for _, m := range c.Destinations {
			if m.Addr.String() == e.Address {
				e.Kernel[i].Connections = &api.Connections{Active: m.Active, Inactive: m.Inactive}
			}
		}
	}
}
