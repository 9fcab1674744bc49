package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Counters are the kernel's counters of a virtual server since its creation. The kernel updates them every 2 s.
// Connections and packets wrap around at 2^32.
type Counters struct {
	Connections, PacketsIn, PacketsOut uint32
	BytesIn, BytesOut                  uint64
}

// ServerStats are the statistics of one virtual server of sluice.
type ServerStats struct {
	// Server is the address or the packet mark of the virtual server, human-readable.
	Server string
	// Frontend is the frontend that uses the virtual server, for the sources that Pool states. Without one, Pool is
	// empty: the virtual server is draining.
	Frontend  plan.Key
	Owner     model.PortName
	Pool      Pool
	Scheduler string
	Counters
	Destinations []DestinationStats // sorted by address
}

// Pool states whose connections a virtual server takes.
type Pool string

// The pools: of all sources, or, under a Local policy, of Pods and the node, and of all others.
const (
	PoolAll     Pool = "all"
	PoolInside  Pool = "inside"
	PoolOutside Pool = "outside"
)

// DestinationStats are the statistics of a destination of a virtual server.
type DestinationStats struct {
	Addr             netip.AddrPort
	Weight           uint16
	Active, Inactive int  // connections
	Draining         bool // no longer in the plan, and kept for its connections
}

// ReadStats reads the statistics of sluice's virtual servers, sorted by address and mark, without changing anything. It
// reads the nftables rules and all virtual servers at once, and then, one by one, the destinations of the first
// maxServers. It returns ErrNoIPVS if IPVS is not loaded, and does not load it.
func ReadStats(ctx context.Context, maxServers int) ([]ServerStats, error) {
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

func (b *Backend) readStats(ctx context.Context, maxServers int) ([]ServerStats, error) {
	frontends, err := b.rules.ReadPools(ctx)
	if err != nil && !rules.IsForeignTable(err) { // under another mode, the virtual servers are draining
		return nil, fmt.Errorf("ipvs: read nftables rules: %w", err)
	}
	uses := serverUses(frontends)
	all, err := b.ipvs.listCounters()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	var out []ServerStats
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
		s := ServerStats{Server: k.String(), Scheduler: c.scheduler, Counters: c.Counters}
		if u, ok := uses[k]; ok {
			s.Frontend, s.Owner, s.Pool = u.frontend, u.owner, u.pool
		}
		for _, d := range list {
			s.Destinations = append(s.Destinations, DestinationStats{d.addr, d.weight, d.active, d.inactive, d.draining})
		}
		slices.SortFunc(s.Destinations, func(a, b DestinationStats) int { return a.Addr.Compare(b.Addr) })
		out = append(out, s)
	}
	return out, nil
}

// serverUse is what a virtual server is for.
type serverUse struct {
	frontend plan.Key
	owner    model.PortName
	pool     Pool
}

// serverUses returns what the virtual servers of the given frontends are for.
func serverUses(frontends map[plan.Key]rules.Pools) map[serverKey]serverUse {
	uses := map[serverKey]serverUse{}
	for k, p := range frontends {
		main, inside, outside := serverKeys(k, p.Inside, p.Outside)
		if p.Split {
			uses[main], uses[inside], uses[outside] = serverUse{k, p.Owner, PoolOutside}, serverUse{k, p.Owner, PoolInside}, serverUse{k, p.Owner, PoolOutside}
		} else {
			uses[main], uses[inside] = serverUse{k, p.Owner, PoolAll}, serverUse{k, p.Owner, PoolAll}
		}
	}
	delete(uses, serverKey{}) // of frontends without a mark, or without an address
	return uses
}
