package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// ReadStats reads the statistics of sluice's virtual servers, sorted by address and mark, without changing anything. It
// reads the nftables rules and all virtual servers at once, and then, one by one, the destinations of the first
// maxServers. It returns ErrNoIPVS if IPVS is not loaded, and does not load it.
func ReadStats(ctx context.Context, maxServers int) ([]backend.ServerStats, error) {
	if err := checkIPVSLoaded(); err != nil {
		return nil, err
	}
	b, err := openReadOnly(Options{})
	if err != nil {
		return nil, err
	}
	stats, err := b.readStats(ctx, maxServers)
	return stats, errors.Join(err, b.Close())
}

func (b *Backend) readStats(ctx context.Context, maxServers int) ([]backend.ServerStats, error) {
	frontends, err := b.rules.ReadPools(ctx)
	if err != nil && !nftables.IsForeignTable(err) { // under another mode, the virtual servers are draining
		return nil, fmt.Errorf("ipvs: read nftables rules: %w", err)
	}
	uses := serverUses(frontends)
	all, err := b.ipvs.listCounters()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	var out []backend.ServerStats
	for _, k := range slices.SortedFunc(maps.Keys(all), compareKeys) {
		c := all[k]
		if c.flags&flagOwned == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("ipvs: read: %w", err)
		}
		var list []destinationState
		if len(out) < maxServers {
			if list, err = b.ipvs.listDestinations(k); err != nil {
				return nil, fmt.Errorf("ipvs: list real servers of virtual server %s: %w", k, withHint(err))
			}
		}
		s := backend.ServerStats{Server: k.String(), Scheduler: c.scheduler, ServerCounters: c.ServerCounters}
		if u, ok := uses[k]; ok {
			s.Frontend, s.Owner, s.Pool = u.frontend, u.owner, u.pool
		}
		for _, d := range list {
			s.Destinations = append(s.Destinations, backend.DestinationStats{Addr: d.addr, Weight: d.weight, Active: d.active, Inactive: d.inactive, Draining: d.draining})
		}
		slices.SortFunc(s.Destinations, func(a, b backend.DestinationStats) int { return a.Addr.Compare(b.Addr) })
		out = append(out, s)
	}
	return out, nil
}

// serverUse is what a virtual server is for.
type serverUse struct {
	frontend plan.Key
	owner    model.PortName
	pool     backend.ServerPool
}

// serverUses returns what the virtual servers of the given frontends are for.
func serverUses(frontends map[plan.Key]nftables.Pools) map[serverKey]serverUse {
	uses := map[serverKey]serverUse{}
	for k, p := range frontends {
		main, inside, outside := serverKeys(k, p.Inside, p.Outside)
		if p.Split {
			uses[main], uses[inside], uses[outside] = serverUse{k, p.Owner, backend.PoolOutside}, serverUse{k, p.Owner, backend.PoolInside}, serverUse{k, p.Owner, backend.PoolOutside}
		} else {
			uses[main], uses[inside] = serverUse{k, p.Owner, backend.PoolAll}, serverUse{k, p.Owner, backend.PoolAll}
		}
	}
	delete(uses, serverKey{}) // of frontends without a mark, or without an address
	return uses
}
