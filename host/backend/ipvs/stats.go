package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Counters is what the kernel has counted at a virtual server since it was made. It sums up every 2 s. Connections and
// packets are of 32 bits and begin anew after 4,294,967,295.
type Counters struct {
	Connections, PacketsIn, PacketsOut uint32
	BytesIn, BytesOut                  uint64
}

// ServerStats is what the kernel counts of one of sluice's virtual servers.
type ServerStats struct {
	// Server is the address, or the mark, of the virtual server.
	Server string
	// Frontend has it, for the sources that Pool says; without Owner it has none and waits for its connections to end.
	Frontend  plan.Key
	Owner     model.PortName
	Pool      Pool
	Scheduler string
	Counters
	Destinations []DestinationStats // sorted by address
}

// Pool says whose connections a virtual server takes.
type Pool string

// The pools: all sources, or under a policy Local those from outside and the others.
const (
	PoolAll     Pool = "all"
	PoolInside  Pool = "inside"
	PoolOutside Pool = "outside"
)

// DestinationStats is a member of a virtual server.
type DestinationStats struct {
	Addr             netip.AddrPort
	Weight           uint16
	Active, Inactive int  // connections
	Draining         bool // in no plan any more, and here for its connections
}

// ReadStats reads what the kernel counts of sluice's virtual servers, sorted, and changes nothing. It reads whose
// frontends there are, all virtual servers at once, and then the members of one after another, of so many at most.
// ErrNoIPVS tells that there is no IPVS, which asking does not load.
func ReadStats(ctx context.Context, most int) ([]ServerStats, error) {
	if _, err := os.Stat("/proc/net/ip_vs"); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("ipvs: %w", ErrNoIPVS)
	}
	b := &Backend{
		o:   Options{Link: DefaultLink, Scheduler: "wrr", Now: func() time.Time { return time.Time{} }},
		log: slog.New(slog.DiscardHandler), caps: Caps(), hashScheduler: "mh",
	}
	if err := b.connect(); err != nil {
		return nil, err
	}
	counts, err := b.readStats(ctx, most)
	return counts, errors.Join(err, b.Close())
}

func (b *Backend) readStats(ctx context.Context, most int) ([]ServerStats, error) {
	frontends, err := b.rules.ReadPools(ctx)
	if err != nil && !rules.IsForeignTable(err) { // another mode's: what is here is left from before
		return nil, fmt.Errorf("ipvs: the companion: %w", err)
	}
	s := &state{marks: rules.Marks{}}
	type use struct {
		key   plan.Key
		owner model.PortName
		pool  Pool
	}
	uses := map[serverKey]use{}
	for k, f := range frontends {
		m := s.marks[k]
		m.Inside, m.Outside = f.Inside, f.Outside
		s.marks[k] = m
		main, inside, outside := s.serverKeys(k)
		delete(s.marks, k)
		if f.Split {
			uses[main], uses[inside], uses[outside] = use{k, f.Owner, PoolOutside}, use{k, f.Owner, PoolInside}, use{k, f.Owner, PoolOutside}
		} else {
			uses[main], uses[inside] = use{k, f.Owner, PoolAll}, use{k, f.Owner, PoolAll}
		}
	}
	delete(uses, serverKey{}) // of those that have no mark, or no address
	all, err := b.ipvs.listCounters()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	var out []ServerStats
	for _, k := range slices.SortedFunc(maps.Keys(all), compareKeys) {
		v := all[k]
		if v.flags&flagOurs == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("ipvs: read: %w", err)
		}
		var list []destinationState
		if len(out) < most {
			if list, err = b.ipvs.listDestinations(k); err != nil {
				return nil, fmt.Errorf("ipvs: list the members of virtual server %s: %w", k, withHint(err))
			}
		}
		c := ServerStats{Server: k.String(), Scheduler: v.scheduler, Counters: v.Counters}
		if u, ok := uses[k]; ok {
			c.Frontend, c.Owner, c.Pool = u.key, u.owner, u.pool
		}
		for _, m := range list {
			c.Destinations = append(c.Destinations, DestinationStats{m.addr, m.weight, m.active, m.inactive, m.draining})
		}
		slices.SortFunc(c.Destinations, func(a, b DestinationStats) int { return a.Addr.Compare(b.Addr) })
		out = append(out, c)
	}
	return out, nil
}
