package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Apply implements backend.Backend. With a delta it writes only what that names. Without one, or after an error, it
// reads the kernel's state and writes the difference.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resetStats()
	if err := ctx.Err(); err != nil {
		return b.report(), err
	}
	err := b.apply(ctx, next, d)
	b.inSync = err == nil
	b.warnUncounted()
	if err == nil {
		err = b.unprogrammed.err()
	}
	return b.report(), err
}

func (b *Backend) apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (err error) {
	b.unprogrammed.retried = false
	retry := b.unprogrammed.due(b.now())
	if d != nil && (!b.inSync || b.familyNeeded(d) || retry) {
		d = nil
	}
	if d != nil {
		err = b.write(b.tables[:], next, d)
	} else {
		err = b.writeAll(ctx, next)
	}
	if errors.Is(err, errNoIPv6) {
		if err = b.load(ctx); err == nil {
			err = b.write(b.tables[:], next, nil)
		}
	}
	again := b.failed
	if b.failed = err != nil; b.failed && (again || retry) && isRejection(err) {
		err = b.isolate(ctx, next)
		b.failed = err != nil
	}
	return err
}

// Preload implements backend.Preloader.
func (b *Backend) Preload(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.load(ctx)
	b.preloaded = err == nil
	return err
}

// usePreloaded reports whether the kernel's state is what Preload has read, once.
func (b *Backend) usePreloaded(ctx context.Context) bool {
	preloaded := b.preloaded
	if b.preloaded = false; !preloaded {
		return false
	}
	gen, err := b.generation(ctx)
	return err == nil && gen-b.knownCommits() == b.gen.distance
}

// writeAll reads the kernel's state and writes the difference to next.
func (b *Backend) writeAll(ctx context.Context, next *plan.Plan) error {
	if !b.usePreloaded(ctx) {
		if err := b.load(ctx); err != nil {
			return err
		}
	}
	if err := b.replaceTables(ctx, next); err != nil {
		return err
	}
	return b.write(b.tables[:], next, nil)
}

// RemovedUDP implements backend.UDPRemover.
func (b *Backend) RemovedUDP() []plan.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	removed := b.removedUDP
	b.removedUDP = nil
	return removed
}

// isolate writes the difference between the kernel's state and next with a transaction for each frontend, and leaves out
// those that the kernel rejects.
func (b *Backend) isolate(ctx context.Context, next *plan.Plan) (err error) {
	b.isolating = true
	defer func() { b.isolating = false }()
	for range maxIsolated {
		if err = b.writeAll(ctx, next); err == nil {
			return nil
		}
		var r *rejection
		if !errors.As(err, &r) {
			return err
		}
		b.unprogrammed.add(r.key, fmt.Errorf("%s %s: %w", next.Frontends[r.key].Owner, r.key, r.err), b.now())
	}
	return err
}
