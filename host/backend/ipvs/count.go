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

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Traffic is what the kernel has counted at a virtual server since it was made. It sums up every 2 s. Connections and
// packets are of 32 bits and begin anew after 4,294,967,295.
type Traffic struct {
	Connections, PacketsIn, PacketsOut uint32
	BytesIn, BytesOut                  uint64
}

// Count is what the kernel counts of one of sluice's virtual servers.
type Count struct {
	// Server is the address, or the mark, of the virtual server.
	Server string
	// Frontend has it, for the sources that Pool says; without Owner it has none and waits for its connections to end.
	Frontend  plan.Key
	Owner     model.PortName
	Pool      Pool
	Scheduler string
	Traffic
	Members []MemberCount // sorted by address
}

// Pool says whose connections a virtual server takes.
type Pool string

// The pools: all sources, or under a policy Local those from outside and the others.
const (
	All     Pool = "all"
	Inside  Pool = "inside"
	Outside Pool = "outside"
)

// MemberCount is a member of a virtual server.
type MemberCount struct {
	Addr             netip.AddrPort
	Weight           uint16
	Active, Inactive int  // connections
	Draining         bool // in no plan any more, and here for its connections
}

// ReadCounts reads what the kernel counts of sluice's virtual servers, sorted, and changes nothing. It reads whose
// frontends there are, all virtual servers at once, and then the members of one after another, of so many at most.
// ErrNoIPVS tells that there is no IPVS, which asking does not load.
func ReadCounts(ctx context.Context, most int) ([]Count, error) {
	if _, err := os.Stat("/proc/net/ip_vs"); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("ipvs: %w", ErrNoIPVS)
	}
	b := &Backend{
		o:   Options{Link: DefaultLink, Scheduler: "wrr", Now: func() time.Time { return time.Time{} }},
		log: slog.New(slog.DiscardHandler), caps: Caps(), hashing: "mh",
	}
	if err := b.connect(); err != nil {
		return nil, err
	}
	counts, err := b.counts(ctx, most)
	return counts, errors.Join(err, b.Close())
}

func (b *Backend) counts(ctx context.Context, most int) ([]Count, error) {
	frontends, err := b.companion.ReadPools(ctx)
	if err != nil && !nftables.NotOurs(err) { // another mode's: what is here is left from before
		return nil, fmt.Errorf("ipvs: the companion: %w", err)
	}
	s := &state{marks: nftables.Marks{}}
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
		main, inside, outside := s.keys(k)
		delete(s.marks, k)
		if f.Split {
			uses[main], uses[inside], uses[outside] = use{k, f.Owner, Outside}, use{k, f.Owner, Inside}, use{k, f.Owner, Outside}
		} else {
			uses[main], uses[inside] = use{k, f.Owner, All}, use{k, f.Owner, All}
		}
	}
	delete(uses, serverKey{}) // of those that have no mark, or no address
	all, err := b.ipvs.traffic()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", hint(err))
	}
	var out []Count
	for _, k := range slices.SortedFunc(maps.Keys(all), compareServers) {
		v := all[k]
		if v.flags&flagOurs == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("ipvs: read: %w", err)
		}
		var list []memberState
		if len(out) < most {
			if list, err = b.ipvs.members(k); err != nil {
				return nil, fmt.Errorf("ipvs: list the members of virtual server %s: %w", k, hint(err))
			}
		}
		c := Count{Server: k.String(), Scheduler: v.scheduler, Traffic: v.Traffic}
		if u, ok := uses[k]; ok {
			c.Frontend, c.Owner, c.Pool = u.key, u.owner, u.pool
		}
		for _, m := range list {
			c.Members = append(c.Members, MemberCount{m.addr, m.weight, m.active, m.inactive, m.lingering})
		}
		slices.SortFunc(c.Members, func(a, b MemberCount) int { return a.Addr.Compare(b.Addr) })
		out = append(out, c)
	}
	return out, nil
}
