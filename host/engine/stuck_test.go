package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/plan"
)

// picky is a backend with a frontend that it never gets right until it is told to.
type picky struct {
	backend.Backend
	mu      sync.Mutex
	mended  bool
	calls   []string
	held    bool
	stuck   int
	failure int
}

func (b *picky) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kind := "whole"
	if d != nil {
		kind = fmt.Sprintf("%d changes", len(d.Changes))
	}
	b.calls = append(b.calls, kind)
	r, err := b.Backend.Apply(ctx, p, d)
	if err == nil && !b.mended {
		err = &backend.PartialError{Frontends: 1, Retried: d == nil || d.Empty(), Err: fmt.Errorf("add member: %w", syscall.EINVAL)}
	}
	return r, err
}

func (b *picky) OnApply(p *engine.ApplyResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held, b.stuck = p.Synced, p.Unprogrammed; p.Err != nil {
		b.failure++
	}
}

type watching struct {
	engine.Observers
	*picky
}

func (w watching) OnApply(p *engine.ApplyResult) { w.picky.OnApply(p) }

func TestOthersDoNotWaitForAFrontendThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		b := &picky{Backend: fake.Open(r.kernel)}
		r.observer = watching{picky: b}
		r.run(b, nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.pass(time.Minute)
		tries := len(b.calls)
		if tries < 8 || tries > 20 || b.calls[0] != "whole" || b.calls[1] != "0 changes" || b.calls[tries-1] != "0 changes" {
			t.Errorf("in a minute: %v", b.calls)
		}
		if !b.held || b.stuck != 1 || b.failure != tries {
			t.Errorf("held %v, stuck %d, failures %d of %d", b.held, b.stuck, b.failure, tries)
		}
		r.emit(eps(2))
		r.holds("at once", "2:1 forward")
		if last := b.calls[len(b.calls)-1]; last != "1 changes" || b.failure != tries {
			t.Errorf("the change came as %s, failures %d", last, b.failure)
		}
		if n := strings.Count(r.log.String(), "some frontends cannot be programmed"); n != 1 || !strings.Contains(r.log.String(), "invalid argument") {
			t.Errorf("logged %d times:\n%s", n, r.log.String())
		}
		b.mu.Lock()
		b.mended = true
		b.mu.Unlock()
		r.pass(10 * time.Second)
		if !strings.Contains(r.log.String(), "the frontends that could not be programmed are") || b.stuck != 0 {
			t.Errorf("stuck %d:\n%s", b.stuck, r.log.String())
		}
		calls := len(b.calls)
		r.pass(time.Minute)
		if len(b.calls) != calls {
			t.Errorf("still tried: %v", b.calls[calls:])
		}
	})
}

func TestABackendWithFrontendsThatAreStuckMayTakeThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		b := &picky{}
		r.observer = watching{picky: b}
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.kernel = fake.NewKernel(fake.Options{})
		b.Backend = fake.Open(r.kernel)
		if _, err := r.engine.Swap(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		r.holds("after the change", "1:1 forward")
		if len(b.calls) < 3 || !b.held || b.stuck != 1 {
			t.Errorf("%v, held %v, stuck %d", b.calls, b.held, b.stuck)
		}
	})
}

// limping is a backend that is stuck with a frontend, and hears of what others write.
type limping struct{ *watched }

func (l limping) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	r, err := l.watched.Apply(ctx, p, d)
	if err == nil {
		err = &backend.PartialError{Frontends: 1, Retried: d == nil || d.Empty(), Err: syscall.EINVAL}
	}
	return r, err
}

func TestWhatOthersDamageIsRepairedAtOnceBesideAFrontendThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{}
		r := watch(t, w, 0)
		t.Cleanup(r.end)
		if _, err := r.engine.Swap(context.Background(), limping{w}); err != nil {
			t.Fatal(err)
		}
		r.pass(63 * time.Second) // until it is tried each ten seconds, and was just now
		looks := len(w.wholes)
		r.damage()
		w.heard(backend.ExternalChange{Object: "a table", Count: 1})
		r.pass(600 * time.Millisecond)
		r.holds("after the damage", "1:1 2:1 forward")
		if len(w.wholes) != looks+1 {
			t.Errorf("%d looks at everything", len(w.wholes)-looks)
		}
	})
}

// silent never says that it has tried.
type silent struct{ *picky }

func (b silent) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	r, err := b.picky.Apply(ctx, p, d)
	return r, &backend.PartialError{Frontends: 1, Err: err}
}

func TestABackendThatTriesNothingIsAskedNoOftener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		b := &picky{Backend: fake.Open(r.kernel)}
		r.run(silent{b}, nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.pass(time.Minute)
		if n := len(b.calls); n < 5 || n > 20 {
			t.Errorf("%d calls in a minute", n)
		}
	})
}
