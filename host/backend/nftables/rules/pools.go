package rules

import (
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Pools is whose a frontend of a companion is, and how its pools are told.
type Pools struct {
	Owner           model.PortName
	Split           bool   // sources from outside have a pool of their own
	Inside, Outside uint32 // marks
}

// ReadPools reads that, and nothing else of a companion: its cost is that of the frontends, not of the endpoints. What
// changes meanwhile may be there or not, and it is not begun again: it is for counting, often, beside changes.
func (b *Backend) ReadPools(ctx context.Context) (map[plan.Key]Pools, error) {
	b.conn.AllowInconsistent = true
	defer func() { b.conn.AllowInconsistent = false }()
	out := map[plan.Key]Pools{}
	for i := range b.tables {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("nftables: read: %w", err)
		}
		t := b.newTable(b.tables[i].family)
		if err := t.loadPools(); err != nil {
			return nil, fmt.Errorf("nftables: read table %s: %w", t.label(), err)
		}
		for k, h := range t.frontends {
			owner, _, _, ok := parseComment(h.comment, k.Protocol)
			if h.listed && ok {
				out[k] = Pools{owner, h.split, h.lanes[inside].mark, h.lanes[outside].mark}
			}
		}
	}
	return out, nil
}

func (t *table) loadPools() error {
	ours, _, err := t.survey()
	if err != nil || !ours.there {
		return err
	}
	if ours.comment != t.comment() {
		return errShape{fmt.Sprintf("its comment is %q, not %q", ours.comment, t.comment())}
	}
	if err := t.loadSets(); err != nil {
		return err
	}
	for i := range sides {
		ss := &t.sides[i]
		for _, s := range []*set{ss.frontends, ss.split, ss.lanes[inside].fwmarks, ss.lanes[outside].fwmarks} {
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
