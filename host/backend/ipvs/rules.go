package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// applyRules programs the nftables rules of all frontends but the failed ones. If that fails, all updates fail.
func (b *Backend) applyRules(ctx context.Context, next *plan.Plan, d *plan.Delta, updates []*frontendUpdate) error {
	var partial bool
	var added []plan.Key
	for _, u := range updates {
		partial = partial || u.failed && u.key.Addr.IsValid()
		if !u.failed && u.next != nil {
			if !b.state.listed[u.key] {
				added = append(added, u.key)
			}
			b.state.countFrontend(u.key, 1)
		}
	}
	if partial {
		next, d = b.excludeFailed(next, d, updates)
	}
	r, err := b.applyPartially(ctx, next, d, updates, added)
	// A full Apply reads what took effect and programs the rest. It must not follow a delta from which frontends are
	// excluded: next contains them.
	if err != nil && ctx.Err() == nil && (d == nil || !partial && len(b.unprogrammed) == 0) {
		b.log.Debug("programming nftables rules failed, trying once more", "err", err)
		r, err = b.applyPartially(ctx, next, nil, updates, added)
	}
	if err != nil {
		for _, u := range updates {
			u.failed = true
		}
		return fmt.Errorf("ipvs: program nftables rules: %w", err)
	}
	b.stats.requeueAfter(r.RequeueAfter)
	b.state.switchingMode = false
	for _, u := range updates {
		b.recordApplied(u)
	}
	clear(b.state.kubeProxyOwned) // kube-proxy no longer forwards what the rules forward
	if !b.rejectTablesDeleted {
		if err := nftables.SetRejected(b.o.Netns, nil); err != nil {
			return fmt.Errorf("ipvs: %w", err)
		}
		if err := nftables.Release(b.o.Netns); err != nil { // sluice was killed during a hold
			return fmt.Errorf("ipvs: %w", err)
		}
		b.rejectTablesDeleted = true
	}
	return b.addGuards(ctx, updates)
}

// applyPartially programs the nftables rules. Updates whose frontends cannot be programmed fail, and the rest succeeds.
func (b *Backend) applyPartially(ctx context.Context, next *plan.Plan, d *plan.Delta, updates []*frontendUpdate, added []plan.Key) (backend.Report, error) {
	r, err := b.rules.Apply(ctx, next, d)
	b.stats.addReport(r)
	var partial *backend.PartialError
	if !errors.As(err, &partial) {
		return r, err
	}
	for _, u := range updates {
		if reason := partial.Failed[u.key]; reason != nil && !u.failed {
			u.fail(reason)
		}
	}
	for _, k := range added {
		if partial.Failed[k] != nil {
			b.state.countFrontend(k, -1)
		}
	}
	return r, nil
}

// excludeFailed returns a plan and a delta in which failed frontends stay as they are in the nftables rules.
func (b *Backend) excludeFailed(next *plan.Plan, d *plan.Delta, updates []*frontendUpdate) (*plan.Plan, *plan.Delta) {
	failed := map[plan.Key]bool{}
	for _, u := range updates {
		if u.failed {
			failed[u.key] = true
		}
	}
	if d != nil {
		out := &plan.Delta{Global: d.Global}
		for _, c := range d.Changes {
			if !failed[c.Key] {
				out.Changes = append(out.Changes, c)
			}
		}
		return next, out
	}
	out := &plan.Plan{Global: next.Global, Frontends: maps.Clone(next.Frontends)}
	for k := range failed {
		if was := b.state.plan.Frontends[k]; was != nil {
			f := *was
			if f.Outside != nil {
				o := *f.Outside
				f.Outside = &o
			}
			b.state.fillPools(&f)
			out.Frontends[k] = &f
		} else {
			delete(out.Frontends, k)
		}
	}
	return out, nil
}

// recordApplied updates b.state after the nftables rules of a frontend were programmed.
func (b *Backend) recordApplied(u *frontendUpdate) {
	if u.failed {
		return
	}
	if b.freeMarks(u); u.next == nil {
		b.state.countFrontend(u.key, -1)
	}
}
