package rules

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
)

// Guard has a companion refuse what comes to addresses and is for no frontend, and no longer do so with others, in one
// transaction or a few. Companion.Guarded gives what holds then. Where the tables are another mode's it does nothing:
// the Apply that replaces them does it.
func (b *Backend) Guard(ctx context.Context, add, del []netip.Addr) (backend.Report, error) {
	for _, t := range b.tables {
		t.stats = txStats{}
	}
	b.conn.Pacer.Reset()
	err := ctx.Err()
	if err == nil {
		err = b.guard(ctx, add, del)
	}
	r := backend.Report{Transactions: b.conn.Pacer.Transactions, Longest: b.conn.Pacer.Longest}
	for _, t := range b.tables {
		r.Messages += t.stats.messages
		r.Elements += t.stats.elements
	}
	return r, err
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
		countVIPs(b.tables[:], add, -1) // again below, as many at a time as fit
	}
	b.inSync = false // until it is through; what was just read is not all that Apply reads
	for _, t := range b.tables {
		x := &tx{t: t}
		x.limit, x.softLimit = b.bounds()
		t.vipRefs.flush(x) // what is left over; the new ones are not counted yet
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
		if known { // else they were not counted
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

// countGuarded counts what Companion.Guarded gives, in tables that have just been read, or are to be made.
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
