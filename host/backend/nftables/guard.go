package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// Guard begins and ends guarding addresses: packets to a guarded address that match no frontend are rejected. It takes
// one or a few transactions. HandOff.GuardedVIPs returns the result of all calls. If the tables have another mode it
// does nothing: the Apply that replaces them guards.
func (b *Backend) Guard(ctx context.Context, add, del []netip.Addr) (backend.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resetStats()
	err := ctx.Err()
	if err == nil {
		err = b.guard(ctx, add, del)
	}
	return b.report(), err
}

func (b *Backend) guard(ctx context.Context, add, del []netip.Addr) error {
	known := b.inSync
	if !known {
		if err := b.load(ctx); err != nil {
			return err
		}
		if b.tables[0].replacing || b.tables[1].replacing {
			return nil
		}
		countVIPs(b.tables[:], add, -1) // again below, as many per transaction as fit
	}
	b.inSync = false // until everything is written; not all that Apply reads was read
	for _, t := range b.tables {
		x := &tx{t: t}
		x.limit, x.softLimit = b.bounds()
		t.vipRefs.flush(x, false) // what is left over; the new ones are not counted yet
		change := func(list []netip.Addr, by int32) error {
			for _, a := range list {
				if model.FamilyOf(a) != t.family {
					continue
				}
				if !t.present {
					t.create()
				}
				if t.vipRefs.add(x, a, by); x.shouldCommit() {
					if err := x.commit(); err != nil {
						return err
					}
				}
			}
			return nil
		}
		if err := change(add, 1); err != nil {
			return err
		}
		if known { // otherwise they were not counted
			if err := change(del, -1); err != nil {
				return err
			}
		}
		if !t.present && !t.rulesDirty {
			continue
		}
		if err := x.commit(); err != nil {
			return err
		}
	}
	b.inSync = known
	return nil
}

// countGuarded counts the guarded addresses in tables that were just read or are to be created.
func (b *Backend) countGuarded(tables ...*table) {
	countVIPs(tables, slices.Collect(maps.Keys(b.balancing.guardedVIPs())), 1)
}

func countVIPs(tables []*table, list []netip.Addr, by int32) {
	for _, t := range tables {
		for _, a := range list {
			if model.FamilyOf(a) == t.family {
				t.vipRefs.add(&tx{t: t}, a, by)
			}
		}
	}
}
