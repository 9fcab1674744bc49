// Package conntrack deletes entries of the kernel's connection table.
package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Table is the conntrack table of this network namespace. It implements engine.ConnTable, and engine.ConnShedder.
type Table struct{ shedder shedder }

// Reset implements engine.ConnTable: it deletes the entries of the connections. The table is listed once per IP family, streamed.
func (t *Table) Reset(ctx context.Context, resets []plan.Reset, tcp backend.Resetter) (total plan.ResetCount, err error) {
	wanted, families := map[plan.Reset]bool{}, map[model.Family]bool{}
	for _, r := range resets {
		wanted[r], families[r.Frontend.Family()] = true, true
	}
	return t.endMatching(ctx, tcp, func(f model.Family) func(*flowEntry) bool {
		if !families[f] {
			return nil
		}
		return func(c *flowEntry) bool { return lookUpFlow(wanted, c) }
	})
}

// endMatching ends the connections for which the function that match returns for their family reports true; nil: none.
func (t *Table) endMatching(ctx context.Context, tcp backend.Resetter, match func(model.Family) func(*flowEntry) bool) (total plan.ResetCount, err error) {
	var errs []error
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		matches := match(f)
		if matches == nil {
			continue
		}
		var list []picked
		err := listFlows(ctx, f, 0, 0, func(c *flowEntry) {
			if matches(c) {
				list = append(list, pickEntry(c, 0))
			}
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("conntrack: list connections, %s: %w", f, err))
			continue
		}
		n, _, err := t.end(ctx, f, list, tcp)
		total.Connections, total.Uncertain = total.Connections+n.Connections, total.Uncertain+n.Uncertain
		errs = append(errs, err)
	}
	return total, errors.Join(errs...)
}
