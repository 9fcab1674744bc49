package state

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// AddKernel adds the weights of a plan that was read from the kernel. If the explanation is that of the sluice that runs, they
// are the shares of new connections: what was decided may not be programmed yet, or not as it was. The shares of another plan
// stay what they are.
func AddKernel(x *api.Explanation, programmed *plan.Plan, running bool) {
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
				index := slices.IndexFunc(pool.Endpoints, func(e plan.Endpoint) bool { return e.Addr.String() == p.Endpoints[j].Address })
				share := api.KernelShare{Frontend: k.String(), Total: pool.Total()}
				if index >= 0 {
					share.Weight = pool.Endpoints[index].Weight
				}
				row := &p.Endpoints[j]
				if running && len(row.Kernel) == 0 && share.Total > 0 {
					row.Share = float64(share.Weight) / float64(share.Total)
				}
				row.Kernel = append(row.Kernel, share)
			}
		}
	}
}
