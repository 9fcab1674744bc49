package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/engine"
)

// partialBackend is a backend that fails to program one frontend until repaired is set.
type partialBackend struct {
	backend.Backend
	mu       sync.Mutex
	repaired bool
	partialState
}

// partialState is what a partialBackend has seen.
type partialState struct {
	calls        []string
	synced       bool
	unprogrammed int
	failures     int
}

func (b *partialBackend) state() partialState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.partialState
}

func (b *partialBackend) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kind := "whole"
	if d != nil {
		kind = fmt.Sprintf("%d changes", len(d.Changes))
	}
	b.calls = append(b.calls, kind)
	r, err := b.Backend.Apply(ctx, p, d)
	if err == nil && !b.repaired {
		err = &backend.PartialError{Frontends: 1, Retried: d == nil || d.Empty(), Err: fmt.Errorf("add real server: %w", syscall.EINVAL)}
	}
	return r, err
}

func (b *partialBackend) OnApply(p *engine.ApplyResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.synced, b.unprogrammed = p.Synced, p.Unprogrammed; p.Err != nil {
		b.failures++
	}
}

type partialObserver struct {
	engine.Observers
	*partialBackend
}

func (w partialObserver) OnApply(p *engine.ApplyResult) { w.partialBackend.OnApply(p) }

func TestUnprogrammedFrontendDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		b := &partialBackend{Backend: fake.Open(r.kernel)}
		r.observer = partialObserver{partialBackend: b}
		r.run(b, nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.advance(time.Minute)
		s := b.state()
		tries := len(s.calls)
		if tries < 8 || tries > 20 || s.calls[0] != "whole" || s.calls[1] != "0 changes" || s.calls[tries-1] != "0 changes" {
			t.Errorf("in a minute: %v", s.calls)
		}
		if !s.synced || s.unprogrammed != 1 || s.failures != tries {
			t.Errorf("synced %v, unprogrammed %d, failures %d of %d", s.synced, s.unprogrammed, s.failures, tries)
		}
		r.emit(eps(2))
		r.expect("at once", "2:1 forward")
		s = b.state()
		if last := s.calls[len(s.calls)-1]; last != "1 changes" || s.failures != tries {
			t.Errorf("the change came as %s, failures %d", last, s.failures)
		}
		if n := strings.Count(r.log.String(), "some frontends cannot be programmed"); n != 1 || !strings.Contains(r.log.String(), "invalid argument") {
			t.Errorf("logged %d times:\n%s", n, r.log.String())
		}
		b.mu.Lock()
		b.repaired = true
		b.mu.Unlock()
		r.advance(10 * time.Second)
		s = b.state()
		if !strings.Contains(r.log.String(), "all frontends are programmed again") || s.unprogrammed != 0 {
			t.Errorf("unprogrammed %d:\n%s", s.unprogrammed, r.log.String())
		}
		calls := len(s.calls)
		r.advance(time.Minute)
		if s := b.state(); len(s.calls) != calls {
			t.Errorf("still tried: %v", s.calls[calls:])
		}
	})
}

func TestSwapAcceptsAPartialError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		b := &partialBackend{}
		r.observer = partialObserver{partialBackend: b}
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.kernel = fake.NewKernel(fake.Options{})
		b.Backend = fake.Open(r.kernel)
		if _, err := r.engine.Swap(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		r.advance(time.Second)
		r.expect("after the change", "1:1 forward")
		if s := b.state(); len(s.calls) < 3 || !s.synced || s.unprogrammed != 1 {
			t.Errorf("%v, synced %v, unprogrammed %d", s.calls, s.synced, s.unprogrammed)
		}
	})
}

// alwaysPartial is a backend that can never program one of its frontends, and reports external changes.
type alwaysPartial struct{ *watchedBackend }

func (l alwaysPartial) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	r, err := l.watchedBackend.Apply(ctx, p, d)
	if err == nil {
		err = &backend.PartialError{Frontends: 1, Retried: d == nil || d.Empty(), Err: syscall.EINVAL}
	}
	return r, err
}

func TestExternalChangeIsRepairedDespiteUnprogrammedFrontend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchedBackend{}
		r := watch(t, w, 0)
		t.Cleanup(r.end)
		if _, err := r.engine.Swap(context.Background(), alwaysPartial{w}); err != nil {
			t.Fatal(err)
		}
		r.advance(63 * time.Second) // until it is tried each ten seconds, and was just now
		looks := len(w.fullSyncs)
		r.damage()
		w.onChange(backend.ExternalChange{Object: "a table", Count: 1})
		r.advance(600 * time.Millisecond)
		r.expect("after the damage", "1:1 2:1 forward")
		if len(w.fullSyncs) != looks+1 {
			t.Errorf("%d full syncs", len(w.fullSyncs)-looks)
		}
	})
}

// notRetrying returns a PartialError without having retried.
type notRetrying struct{ *partialBackend }

func (b notRetrying) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	r, err := b.partialBackend.Apply(ctx, p, d)
	return r, &backend.PartialError{Frontends: 1, Err: err}
}

func TestPartialErrorWithoutRetryKeepsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		b := &partialBackend{Backend: fake.Open(r.kernel)}
		r.run(notRetrying{b}, nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.advance(time.Minute)
		if n := len(b.calls); n < 5 || n > 20 {
			t.Errorf("%d calls in a minute", n)
		}
	})
}

// rejectionObserver collects the Services of frontends that could not be programmed.
type rejectionObserver struct {
	engine.Observers
	mu     sync.Mutex
	failed []string
}

func (o *rejectionObserver) OnApply(r *engine.ApplyResult) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range r.NewlyFailed {
		o.failed = append(o.failed, f.Service.String())
	}
}

// TestOwnerOfRejectedFrontendIsReportedOnce: not with each retry, and again when it fails again.
func TestOwnerOfRejectedFrontendIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		o := &rejectionObserver{}
		r.observer = o
		s := svc()
		r.kernel.Reject(key, syscall.ENOSPC)
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(s, eps(1), synced)
		r.advance(time.Minute)
		if want := []string{s.Name.String()}; !slices.Equal(o.failed, want) {
			t.Errorf("reported %q, want %q", o.failed, want)
		}
		r.kernel.Reject(key, nil)
		r.advance(time.Minute)
		r.expect("no longer rejected", "1:1 forward")
		r.kernel.Reject(key, syscall.ENOSPC)
		r.emit(eps(2))
		r.advance(time.Minute)
		if len(o.failed) != 2 {
			t.Errorf("reported %q", o.failed)
		}
	})
}
