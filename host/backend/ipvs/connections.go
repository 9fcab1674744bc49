package ipvs

import (
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

var _ backend.ConnectionCounter = (*Backend)(nil)

// CountConnections implements backend.ConnectionCounter with the kernel's counts: a request for each virtual server of the
// frontends.
func (b *Backend) CountConnections(ctx context.Context, frontends []plan.Key, count map[model.EndpointKey]uint32) error {
	counted := map[serverKey]bool{{}: true}
	for _, f := range frontends {
		main, inside, outside := b.state.serverKeys(f)
		for _, k := range [...]serverKey{main, inside, outside} {
			if counted[k] || b.state.servers[k] == nil {
				continue
			}
			counted[k] = true
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("ipvs: count connections: %w", err)
			}
			list, err := b.ipvs.listDestinations(k)
			if err != nil {
				return fmt.Errorf("ipvs: count connections: list real servers of virtual server %s: %w", k, withHint(err))
			}
			for i := range list {
				e := model.EndpointKey{Addr: list[i].addr, Protocol: f.Protocol}
				if n, ok := count[e]; ok {
					count[e] = n + list[i].open(f.Protocol)
				}
			}
		}
	}
	return nil
}

// open returns the number of open connections: those that are established. To IPVS, UDP connections never are.
func (d *destinationState) open(p model.Protocol) uint32 {
	if p == model.UDP {
		return uint32(max(0, d.inactive))
	}
	return uint32(max(0, d.active))
}
