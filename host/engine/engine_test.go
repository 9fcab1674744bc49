package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
)

func TestChangeIsProgrammedImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2))
		r.expect("before the state is complete", "")
		r.emit(synced)
		r.expect("complete", "1:1 2:1 forward")
		r.emit(eps(1, 2, 3))
		r.expect("one more", "1:1 2:1 3:1 forward")
		r.emit(eps())
		r.expect("none left", "reject")
		r.emit(model.Change{Kind: model.ServiceKind, Name: web})
		r.expect("no Service", "")
	})
}

func TestUnchangedObjectWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2), synced)
		before := r.kernel.Stats()
		r.emit(svc(), eps(2, 1))
		r.advance(time.Hour)
		if after := r.kernel.Stats(); after.Applies != before.Applies {
			t.Fatalf("%d applies for nothing", after.Applies-before.Applies)
		}
	})
}

func TestBurstIsProgrammedInOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1), synced)
		before := r.kernel.Stats().Applies
		// The engine is blocked while the burst comes in.
		blocked, release := make(chan struct{}), make(chan struct{})
		go r.engine.Do(context.Background(), func(*planner.Planner) { close(blocked); <-release })
		<-blocked
		for n := range 100 {
			r.feed <- []model.Change{eps(1 + n%5)}
		}
		r.feed <- []model.Change{eps(7)}
		close(release)
		synctest.Wait()
		r.expect("after the burst", "7:1 forward")
		if n := r.kernel.Stats().Applies - before; n > 3 {
			t.Fatalf("%d applies for a burst", n)
		}
	})
}

func TestRestartWithoutChangeWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2), synced)
		r.stop()
		<-r.ended
		r.expect("stopped, and still forwarding", "1:1 2:1 forward")
		before := r.kernel.Stats()
		r.run(fake.Open(r.kernel), nil, false)
		r.emit(svc(), eps(1, 2), synced)
		if after := r.kernel.Stats(); after.Messages != before.Messages {
			t.Fatalf("%d messages", after.Messages-before.Messages)
		}
	})
}

func TestOnceReturnsWhenTheStateIsProgrammed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fake.NewKernel(fake.Options{Linger: 5 * time.Millisecond, Now: time.Now})
		r := newRig(t, k)
		r.run(fake.Open(k), nil, true)
		r.feed <- []model.Change{svc(), eps(1), synced}
		if err := <-r.ended; err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.expect("after it ended", "1:1 forward")
	})
}

// requeuingBackend always asks for another Apply.
type requeuingBackend struct{ backend.Backend }

func (b requeuingBackend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	r, err := b.Backend.Apply(ctx, next, d)
	r.RequeueAfter = time.Minute
	return r, err
}

func TestOnceDoesNotWaitForMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fake.NewKernel(fake.Options{})
		r := newRig(t, k)
		r.run(requeuingBackend{fake.Open(k)}, nil, true)
		r.feed <- []model.Change{svc(), eps(1), synced}
		begin := time.Now()
		if err := <-r.ended; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("it took %s", took)
		}
		r.stop()
	})
}

func TestRunReturnsTheErrorOfTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fake.NewKernel(fake.Options{})
		r := newRig(t, k)
		r.run(fake.Open(k), nil, false)
		gone := errors.New("the folder is gone")
		r.fail <- gone
		if err := <-r.ended; !errors.Is(err, gone) {
			t.Fatalf("got %v", err)
		}
		r.stop()
	})
}

func TestMinSyncPeriodSplitsALongBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		r.minSyncPeriod = time.Second
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.advance(time.Second)
		before := r.kernel.Stats().Applies
		for n := range 50 { // 5 s of changes
			r.emit(eps(2 + n))
			r.advance(100 * time.Millisecond)
		}
		if n := r.kernel.Stats().Applies - before; n < 4 || n > 6 {
			t.Fatalf("%d applies in five seconds", n)
		}
		r.emit(eps(9))
		r.advance(time.Second)
		r.expect("the last change", "9:1 forward")
	})
}
