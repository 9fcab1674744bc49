package nftables

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Pools is the Service port of a frontend and the marks of its pools.
type Pools struct {
	Owner           model.PortName
	Split           bool   // sources outside the cluster have a pool of their own
	Inside, Outside uint32 // marks
}

// ReadPools reads Pools and nothing else, at a cost per frontend, not per endpoint. What changes meanwhile may be
// missing, and nothing is read again: it is for statistics, which are read often and next to changes.
func (b *Backend) ReadPools(ctx context.Context) (map[plan.Key]Pools, error) {
	b.conn.AllowInconsistent = true
	defer func() { b.conn.AllowInconsistent = false }()
	out := map[plan.Key]Pools{}
	for i := range b.tables {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("nftables: read: %w", err)
		}
		t := newTable(b.tables[i].family, b.conn, b.balancing, b.limits)
		if err := t.loadPools(); err != nil {
			return nil, fmt.Errorf("nftables: read table %s: %w", t.String(), err)
		}
		for k, h := range t.frontends {
			owner, _, _, ok := parseComment(h.comment, k.Protocol)
			if h.listed && ok {
				out[k] = Pools{owner, h.split, h.scopes[inside].mark, h.scopes[outside].mark}
			}
		}
	}
	return out, nil
}

// Marks are the marks of frontends' pools: the one for sources outside the cluster, and the other.
type Marks map[plan.Key]struct{ Inside, Outside uint32 }

// ReadMarks is Read, and also returns the marks of pools and the addresses that are guarded. With HandOff, the pools that
// are read have no endpoints.
func (b *Backend) ReadMarks(ctx context.Context) (p *plan.Plan, marks Marks, guarded map[netip.Addr]bool, err error) {
	tables, err := b.read(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	marks, guarded = Marks{}, map[netip.Addr]bool{}
	for _, t := range tables {
		for a := range t.vipRefs.all() {
			guarded[a] = true
		}
		for k, h := range t.frontends {
			m := marks[k]
			m.Inside, m.Outside = h.scopes[inside].mark, h.scopes[outside].mark
			if m.Inside|m.Outside != 0 {
				marks[k] = m
			}
		}
	}
	return decodePlan(tables), marks, guarded, nil
}

func (t *table) loadPools() error {
	ours, _, err := t.listTables()
	if err != nil || !ours.exists {
		return err
	}
	if !t.balancing.acceptsComment(ours.comment) {
		return errSchemaMismatch{fmt.Sprintf("its comment is %q, not %q", ours.comment, t.balancing.traits().tableComment)}
	}
	if err := t.loadSets(); err != nil {
		return err
	}
	for i := range lookups {
		ss := &t.lookups[i]
		for _, s := range []*set{ss.frontends, ss.split, ss.scopes[inside].fwmarks, ss.scopes[outside].fwmarks} {
			if !s.exists {
				continue
			}
			list, _, err := t.dumpElements(s)
			if err == nil {
				err = t.loader(s)(list)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
