package state

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/plan"
)

// AddKernel adds the weights of a plan that was read from the kernel.
func (x *Explanation) AddKernel(programmed *plan.Plan) {
	for _, k := range programmed.Keys() {
		f := programmed.Frontends[k]
		if f.Owner.Service.String() != x.Service {
			continue
		}
		for i := range x.Pools {
			p := &x.Pools[i]
			if p.Port != f.Owner.Port || p.Protocol != f.Owner.Protocol.String() || p.Family != k.Family().String() {
				continue
			}
			pool := &f.Pool
			if p.Pool == "local" && f.Outside != nil {
				pool = f.Outside
			}
			for j := range p.Endpoints {
				at := slices.IndexFunc(pool.Endpoints, func(m plan.Endpoint) bool { return m.Addr.String() == p.Endpoints[j].Address })
				share := KernelShare{Frontend: k.String(), Total: pool.Total()}
				if at >= 0 {
					share.Weight = pool.Endpoints[at].Weight
				}
				p.Endpoints[j].Kernel = append(p.Endpoints[j].Kernel, share)
			}
		}
	}
}

// Connections are those of a member, as the kernel of mode ipvs has them.
type Connections struct {
	Active   int `json:"active"`
	Inactive int `json:"inactive"`
}

func (c *Connections) String() string {
	return fmt.Sprintf("%d active, %d inactive", c.Active, c.Inactive)
}

// AddCounts fills in the connections of mode ipvs. Where they cannot be read, nothing is lost: the weights are there.
func (x *Explanation) AddCounts(counts []ipvs.ServerStats) {
	for i := range counts {
		c := &counts[i]
		if c.Pool == "" || c.Owner.Service.String() != x.Service {
			continue
		}
		for j := range x.Pools {
			p := &x.Pools[j]
			if (p.Pool == "local") != (c.Pool == ipvs.PoolOutside) && c.Pool != ipvs.PoolAll {
				continue
			}
			for e := range p.Endpoints {
				x.count(&p.Endpoints[e], c)
			}
		}
	}
}

// count looks for an endpoint among the members of a virtual server.
func (*Explanation) count(e *Endpoint, c *ipvs.ServerStats) {
	for i := range e.Kernel {
		if e.Kernel[i].Frontend != c.Frontend.String() {
			continue
		}
		for _, m := range c.Destinations {
			if m.Addr.String() == e.Address {
				e.Kernel[i].Connections = &Connections{m.Active, m.Inactive}
			}
		}
	}
}
