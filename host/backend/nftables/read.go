package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// Read decodes the tables that forward into a plan.
func (b *Backend) Read(ctx context.Context) (*plan.Plan, error) {
	tables, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	return decodePlan(tables), nil
}

func (b *Backend) read(ctx context.Context) (tables [2]*table, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err = b.readConsistent(ctx, func() error {
		for i, t := range b.tables {
			tables[i] = newTable(t.family, b.conn, b.balancing, b.limits)
			if mismatch, err := tables[i].loadForwarding(); err != nil {
				return err
			} else if mismatch != nil {
				return fmt.Errorf("nftables: read table %s: it is another version's or another program's: %w", t.String(), mismatch)
			}
		}
		return nil
	})
	return tables, err
}

// maxReads is how often a read is tried if the ruleset changes during it. Usually another table changed, so the last
// result is used. If it is wrong, a message fails and the next read corrects it.
const maxReads = 5

// readConsistent calls f until the ruleset does not change during the call, or maxReads times. It returns the generation.
func (b *Backend) readConsistent(ctx context.Context, f func() error) (gen uint32, err error) {
	defer func() { b.conn.AllowInconsistent = false }()
	for try := 1; ; try++ {
		b.conn.AllowInconsistent = try == maxReads
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("nftables: read: %w", err)
		}
		before, err := b.generation(ctx)
		if err != nil {
			return 0, err
		}
		ferr := f()
		after, err := b.generation(ctx)
		if err != nil {
			return 0, err
		}
		if before == after && !errors.Is(ferr, nfnl.ErrInterrupted) || b.conn.AllowInconsistent {
			return after, ferr
		}
	}
}

// decodePlan merges the tables of both families.
func decodePlan(tables [2]*table) *plan.Plan {
	p := &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}
	for _, t := range tables {
		g := &t.globals
		p.Global.NodePortAddrs = append(p.Global.NodePortAddrs, g.nodePortAddrs...)
		p.Global.LocalhostAddrs = append(p.Global.LocalhostAddrs, g.localhostAddrs...)
		p.Global.PodSources = append(p.Global.PodSources, g.podSources...)
		p.Global.ServiceCIDRs = append(p.Global.ServiceCIDRs, g.serviceCIDRs...)
		p.Global.NoMasquerade = append(p.Global.NoMasquerade, g.noMasquerade...)
		if p.Global.PodInterfaces == nil {
			p.Global.PodInterfaces = interfaceNames(g.interfaces)
		}
		if p.Global.MasqueradeMark == 0 {
			p.Global.MasqueradeMark = t.masqueradeBit
		}
		for k, h := range t.frontends {
			if h.listed {
				p.Frontends[k] = h.decode(k)
			}
		}
	}
	return p
}
