// Package conntrack deletes entries of the kernel's connection table.
package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Table is the conntrack table of this network namespace. It implements engine.ConnTable, and engine.ConnShedder.
type Table struct {
	// ResetTCP is called with TCP connections before their entries are deleted. It makes the data plane answer their next packets with RST,
	// and returns how many it cannot remember. nil: the data plane does so with all packets of unknown TCP connections.
	ResetTCP func(ctx context.Context, list []plan.Connection) (left int, err error)

	shedder shedder
}

// Reset ends the given connections: it deletes their entries. The next packet of a TCP client is answered with RST, that of others is
// balanced like the first one of a new connection. The table is listed once per IP family, streamed.
func (t *Table) Reset(ctx context.Context, resets []plan.Reset) (total plan.ResetCount, err error) {
	wanted, families := map[plan.Reset]bool{}, map[model.Family]bool{}
	for _, r := range resets {
		wanted[r], families[r.Frontend.Family()] = true, true
	}
	return t.endMatching(ctx, func(f model.Family) func(*flowEntry) bool {
		if !families[f] {
			return nil
		}
		return func(c *flowEntry) bool { return lookUpFlow(wanted, c) }
	})
}

// endMatching ends the connections for which the function that match returns for their family reports true; nil: none.
func (t *Table) endMatching(ctx context.Context, match func(model.Family) func(*flowEntry) bool) (total plan.ResetCount, err error) {
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
		n, _, err := t.end(ctx, f, list)
		total.Connections, total.Uncertain = total.Connections+n.Connections, total.Uncertain+n.Uncertain
		errs = append(errs, err)
	}
	return total, errors.Join(errs...)
}
