package ipvs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// maxDeclines bounds how many Applies keep the tables of another mode in force because a frontend fails that those
// tables may forward.
const maxDeclines = 3

// applyStats is what an Apply has done so far.
type applyStats struct {
	backend.Report
	linkReady bool // the link exists and is up
}

// addReport adds what the nftables backend did.
func (s *applyStats) addReport(r backend.Report) {
	s.Messages, s.Elements = s.Messages+r.Messages, s.Elements+r.Elements
	s.Transactions, s.Longest = s.Transactions+r.Transactions, max(s.Longest, r.Longest)
}

// requeueAfter asks for another Apply after a delay, unless the delay is 0.
func (s *applyStats) requeueAfter(delay time.Duration) {
	if delay > 0 && (s.RequeueAfter == 0 || delay < s.RequeueAfter) {
		s.RequeueAfter = delay
	}
}

// Apply implements backend.Backend. It adds first and removes last, so that no connection finds a frontend incomplete:
// destinations, addresses, nftables rules, schedulers, weights, removals. A request that fails twice leaves its frontend as close
// to the plan as possible; other frontends are not affected.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	b.stats = applyStats{}
	err := ctx.Err()
	if err == nil {
		err = b.apply(ctx, next, d)
	}
	return b.stats.Report, err
}

func (b *Backend) apply(ctx context.Context, next *plan.Plan, d *plan.Delta) error {
	full := d == nil || !b.stateTrusted
	b.stateTrusted, b.stateSuspect = false, false // trusted again if everything succeeds
	var updates []*frontendUpdate
	if full {
		if err := b.applySysctls(false); err != nil {
			return err
		}
		s, err := b.load(ctx)
		if err != nil {
			return err
		}
		b.setState(s)
		updates, d = b.allUpdates(next), nil
	} else {
		d = b.unprogrammed.retryDelta(next, d)
		updates = b.deltaUpdates(d)
	}
	forEach(updates, b.lookupLocal)
	if err := b.addGuards(ctx, updates); err != nil {
		return err
	}
	forEach(updates, b.addDestinations)
	forEach(updates, b.bindFrontend)
	forEach(updates, b.awaitFrontend)
	if b.state.switchingMode && b.declines < maxDeclines {
		// The tables of the other mode still forward the frontends that failed: keep them, unless this repeats.
		if slices.ContainsFunc(updates, func(u *frontendUpdate) bool { return u.failed }) {
			b.declines++
			return joinErrors(updates)
		}
	}
	rulesErr := b.applyRules(ctx, next, d, updates)
	if err := ctx.Err(); err != nil {
		return errors.Join(joinErrors(updates), rulesErr, err)
	}
	b.setSchedulers(updates)
	for _, u := range updates {
		b.setWeights(u)
	}
	for _, u := range updates {
		b.drainDestinations(u)
	}
	cleanupErr := b.removeUnused(ctx, updates, full)
	for _, u := range updates {
		// Only a full Apply finds virtual servers that no frontend uses.
		b.stateSuspect = b.stateSuspect || !u.key.Addr.IsValid() && len(u.errs) > 0
	}
	if rulesErr != nil || cleanupErr != nil || b.stateSuspect {
		return errors.Join(joinErrors(updates), rulesErr, cleanupErr)
	}
	b.stateTrusted = true
	return b.unprogrammed.record(updates)
}

// RemovedUDP implements backend.UDPRemover: the nftables rules name all frontends.
func (b *Backend) RemovedUDP() []plan.Key {
	if rules, ok := b.rules.(backend.UDPRemover); ok {
		return rules.RemovedUDP()
	}
	return nil
}

func (b *Backend) setState(s *state) {
	b.state = *s
	clear(b.unprogrammed)
	b.drains.reset(b.state.servers)
}

// removeUnused removes drained destinations, unused addresses and guards, and asks for another Apply if some must wait.
func (b *Backend) removeUnused(ctx context.Context, updates []*frontendUpdate, full bool) error {
	delay, err := b.reapDrained(full)
	if err != nil {
		return err
	}
	b.stats.requeueAfter(delay)
	for _, u := range updates {
		if u.next == nil && u.key.Addr.IsValid() {
			b.markIdle(u.key.Addr)
		}
	}
	if full {
		if err := b.migrateLink(); err != nil {
			return err
		}
		b.markAllIdle()
	}
	delay, err = b.unbindIdle()
	b.stats.requeueAfter(delay)
	return errors.Join(err, b.releaseGuards(ctx))
}
