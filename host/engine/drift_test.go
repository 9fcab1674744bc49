package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
)

// watchedBackend is a fake backend that reports external changes.
type watchedBackend struct {
	backend.Backend
	onChange  func(backend.ExternalChange)
	err       error // of Watch
	drifted   atomic.Bool
	took      time.Duration // of a full sync
	fullSyncs []time.Time
	tooEarly  bool // Watch was called before the first full sync
	stopped   bool
}

func (w *watchedBackend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	if d == nil {
		w.fullSyncs = append(w.fullSyncs, time.Now())
		time.Sleep(w.took)
	}
	return w.Backend.Apply(ctx, next, d)
}

func (w *watchedBackend) Watch(onChange func(backend.ExternalChange)) (func(), error) {
	w.onChange, w.tooEarly = onChange, len(w.fullSyncs) == 0
	return func() { w.stopped = true }, w.err
}

func (w *watchedBackend) Drifted(context.Context) (bool, error) {
	return w.drifted.Swap(false), nil
}

// watch starts an engine with a watchedBackend.
func watch(t *testing.T, w *watchedBackend, minSync time.Duration) *rig {
	k := fake.NewKernel(fake.Options{Now: time.Now})
	w.Backend = fake.Open(k)
	r := newRig(t, k)
	o := engine.Options{Source: r, Backend: w, MinSyncPeriod: minSync, SyncPeriod: 30 * time.Second,
		Log:     slog.New(slog.NewTextHandler(r.log, nil)),
		Planner: planner.New(planner.Settings{Node: "n0"}, nil)}
	r.engine = engine.New(o)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.engine.Run(ctx) }()
	r.emit(svc(), eps(1, 2), synced)
	r.advance(time.Minute)
	if len(w.fullSyncs) != 1 {
		t.Fatalf("%d full syncs at the start, want 1", len(w.fullSyncs))
	}
	return r
}

func (r *rig) damage() {
	r.t.Helper()
	b := fake.Open(r.kernel)
	if _, err := b.Apply(context.Background(), &plan.Plan{}, nil); err != nil {
		r.t.Fatal(err)
	}
	r.expect("damaged", "")
}

func TestExternalChangeIsRepairedAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchedBackend{}
		r := watch(t, w, 0)
		r.damage()
		w.onChange(backend.ExternalChange{Object: "table ip sluice deleted", Process: "nft (pid 7)", Count: 3})
		synctest.Wait()
		r.expect("repaired", "1:1 2:1 forward")
		for _, want := range []string{"table ip sluice deleted", "nft (pid 7)", "changes=3"} {
			if !strings.Contains(r.log.String(), want) {
				t.Errorf("no %q in the log:\n%s", want, r.log)
			}
		}
		r.end()
		if !w.stopped {
			t.Error("Watch was not stopped")
		}
	})
}

// The kernel makes a notification of each element that the start adds, if anybody listens.
func TestWatchBeginsWhenThePlanIsProgrammed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchedBackend{}
		r := watch(t, w, 0)
		defer r.end()
		if w.onChange == nil || w.tooEarly {
			t.Errorf("watched: %t; before the first full sync: %t", w.onChange != nil, w.tooEarly)
		}
	})
}

func TestRepairIgnoresMinSyncPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchedBackend{}
		r := watch(t, w, 10*time.Second)
		defer r.end()
		r.emit(eps(1)) // a step just now
		r.damage()
		w.onChange(backend.ExternalChange{Object: "x", Count: 1})
		r.advance(time.Second)
		r.expect("repaired", "1:1 forward")
	})
}

func TestRepairsAreRateLimited(t *testing.T) {
	for name, c := range map[string]struct {
		took  time.Duration
		least int
		most  int
	}{"quick to repair": {0, 15, 21}, "slow to repair": {time.Second, 1, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watchedBackend{}
				r := watch(t, w, 0)
				defer r.end()
				w.took = c.took
				for range 1000 { // 10 s
					w.onChange(backend.ExternalChange{Object: "x", Count: 1})
					r.advance(10 * time.Millisecond)
				}
				if n := len(w.fullSyncs) - 1; n < c.least || n > c.most {
					t.Errorf("%d full syncs in 10 s, want %d to %d", n, c.least, c.most)
				}
				r.damage()
				w.onChange(backend.ExternalChange{Object: "y", Count: 1})
				r.advance(12 * time.Second)
				r.expect("the last change is repaired", "1:1 2:1 forward")
			})
		})
	}
}

// A machine that stands still makes a repair seem slow. The next one does not wait for ten times as long.
func TestARepairOnAMachineThatStoodStillDoesNotDelayTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchedBackend{took: 20 * time.Second}
		r := watch(t, w, 0)
		defer r.end()
		w.onChange(backend.ExternalChange{Object: "x", Count: 1})
		r.advance(25 * time.Second)
		w.took = 0
		r.damage()
		w.onChange(backend.ExternalChange{Object: "y", Count: 1})
		r.advance(30 * time.Second)
		r.expect("repaired", "1:1 2:1 forward")
	})
}

func TestMissedExternalChangeIsFoundWithinTheSyncPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchedBackend{err: errors.New("no listening here")}
		r := watch(t, w, 0)
		defer r.end()
		if !strings.Contains(r.log.String(), "no listening here") {
			t.Errorf("not logged:\n%s", r.log)
		}
		r.damage()
		w.drifted.Store(true)
		r.advance(30 * time.Second)
		r.expect("repaired", "1:1 2:1 forward")
		r.advance(time.Hour)
		if len(w.fullSyncs) != 2 {
			t.Errorf("%d full syncs, want 2", len(w.fullSyncs))
		}
	})
}
