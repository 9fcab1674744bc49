package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/plan"
)

// maxDeclines is how often tables of another mode stay in force because a frontend fails that they may have.
const maxDeclines = 3

// applyStats is what an Apply has done so far.
type applyStats struct {
	backend.Report
	linkReady bool // it is there
}

// addReport counts what the companion did.
func (s *applyStats) addReport(r backend.Report) {
	s.Messages, s.Elements = s.Messages+r.Messages, s.Elements+r.Elements
	s.Transactions, s.Longest = s.Transactions+r.Transactions, max(s.Longest, r.Longest)
}

// requeueAfter asks for another Apply, of 0 for none.
func (s *applyStats) requeueAfter(after time.Duration) {
	if after > 0 && (s.RequeueAfter == 0 || after < s.RequeueAfter) {
		s.RequeueAfter = after
	}
}

// Apply brings the kernel to next. Members come first, then addresses, frontends, weights, and last what goes, so that
// no connection finds nothing. A frontend for which a message fails, a second time too, is as near to the plan as it can
// be without, and the others do not wait for it.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	b.stats = applyStats{}
	err := ctx.Err()
	if err == nil {
		err = b.apply(ctx, next, d)
	}
	return b.stats.Report, err
}

func (b *Backend) apply(ctx context.Context, next *plan.Plan, d *plan.Delta) error {
	whole := d == nil || !b.stateTrusted
	b.stateTrusted, b.stateSuspect = false, false // until it is through
	var jobs []*frontendUpdate
	if whole {
		if err := b.applySysctls(false); err != nil {
			return err
		}
		s, err := b.load(ctx)
		if err != nil {
			return err
		}
		b.setState(s)
		jobs, d = b.allUpdates(next), nil
	} else {
		d = b.unprogrammed.retryDelta(next, d)
		jobs = b.deltaUpdates(d)
	}
	forEach(jobs, b.lookupLocal)
	if err := b.addGuards(ctx, jobs); err != nil {
		return err
	}
	forEach(jobs, b.addDestinations)
	forEach(jobs, b.bindFrontend)
	if b.state.switchingMode && b.declines < maxDeclines {
		// The tables from before forward what would be missing. They stay, unless it goes on.
		if slices.ContainsFunc(jobs, func(j *frontendUpdate) bool { return j.failed }) {
			b.declines++
			return joinErrors(jobs)
		}
	}
	companion := b.applyRules(ctx, next, d, jobs)
	if err := ctx.Err(); err != nil {
		return errors.Join(joinErrors(jobs), companion, err)
	}
	for _, j := range jobs {
		b.setWeights(j)
	}
	for _, j := range jobs {
		b.drainDestinations(j)
	}
	rest := b.removeUnused(ctx, jobs, whole)
	for _, j := range jobs {
		// What no frontend has is found by looking at everything only.
		b.stateSuspect = b.stateSuspect || !j.key.Addr.IsValid() && len(j.errs) > 0
	}
	if companion != nil || rest != nil || b.stateSuspect {
		return errors.Join(joinErrors(jobs), companion, rest)
	}
	b.stateTrusted = true
	return b.unprogrammed.record(jobs)
}

// setState makes what was read the mirror.
func (b *Backend) setState(s *state) {
	b.state = *s
	clear(b.unprogrammed)
	b.drains.reset(b.state.servers)
}

// applyRules has the companion take all but those that stay as they are. When that fails all of them do.
func (b *Backend) applyRules(ctx context.Context, next *plan.Plan, d *plan.Delta, jobs []*frontendUpdate) error {
	var bad bool
	for _, j := range jobs {
		bad = bad || j.failed && j.key.Addr.IsValid()
		if !j.failed && j.next != nil {
			b.state.countFrontend(j.key, 1)
		}
	}
	if bad {
		next, d = b.excludeFailed(next, d, jobs)
	}
	r, err := b.rules.Apply(ctx, next, d)
	b.stats.addReport(r)
	if err != nil && ctx.Err() == nil && (d == nil || !bad && len(b.unprogrammed) == 0) {
		// What became of it is read, and the rest is done, once. Not where the plan has more than the companion may.
		b.log.Debug("the companion of IPVS: trying once more", "err", err)
		r, err = b.rules.Apply(ctx, next, nil)
		b.stats.addReport(r)
	}
	if err != nil {
		for _, j := range jobs {
			j.failed = true
		}
		return fmt.Errorf("ipvs: the companion: %w", err)
	}
	b.stats.requeueAfter(r.RequeueAfter)
	b.state.switchingMode = false
	for _, j := range jobs {
		b.recordApplied(j)
	}
	// Nobody else forwards any more what comes to these.
	clear(b.state.kubeProxyOwned)
	if !b.rejectTablesDeleted {
		if _, err := setRejected(b.o.Netns, nil); err != nil {
			return err
		}
		b.rejectTablesDeleted = true
	}
	return b.addGuards(ctx, jobs)
}

// excludeFailed leaves the frontends that stay as they are in the companion.
func (b *Backend) excludeFailed(next *plan.Plan, d *plan.Delta, jobs []*frontendUpdate) (*plan.Plan, *plan.Delta) {
	stays := map[plan.Key]bool{}
	for _, j := range jobs {
		if j.failed {
			stays[j.key] = true
		}
	}
	if d != nil {
		out := &plan.Delta{Global: d.Global}
		for _, c := range d.Changes {
			if !stays[c.Key] {
				out.Changes = append(out.Changes, c)
			}
		}
		return next, out
	}
	out := &plan.Plan{Global: next.Global, Frontends: maps.Clone(next.Frontends)}
	for k := range stays {
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

// recordApplied notes what the companion has now.
func (b *Backend) recordApplied(j *frontendUpdate) {
	if j.failed {
		return
	}
	if b.freeMarks(j); j.next == nil {
		b.state.countFrontend(j.key, -1)
	}
}

// removeUnused looks after members that linger, and takes addresses away that have nothing. It tells when to do so again.
func (b *Backend) removeUnused(ctx context.Context, jobs []*frontendUpdate, whole bool) error {
	again, err := b.reapDrained(whole)
	if err != nil {
		return err
	}
	b.stats.requeueAfter(again)
	for _, j := range jobs {
		if j.next == nil && j.key.Addr.IsValid() {
			b.markIdle(j.key.Addr)
		}
	}
	if whole {
		if err := b.migrateLink(); err != nil {
			return err
		}
		b.markAllIdle()
	}
	again, err = b.unbindIdle()
	b.stats.requeueAfter(again)
	return errors.Join(err, b.releaseGuards(ctx))
}
