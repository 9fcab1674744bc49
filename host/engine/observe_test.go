package engine_test

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/engine"
)

// recorder records the calls of an Observer.
type recorder struct {
	mu     sync.Mutex
	lines  []string
	queued bool
}

func (d *recorder) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// take returns the lines since the last take.
func (d *recorder) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.lines
	d.lines = nil
	return out
}

func (d *recorder) OnEnqueue(c []model.Change, _ time.Time) {
	d.add("enqueued %d", len(c))
	d.queued = true
}

// OnDequeue is recorded only if something was queued.
func (d *recorder) OnDequeue() {
	if d.queued {
		d.add("dequeued")
		d.queued = false
	}
}

func (d *recorder) OnPlan(p *engine.PlannedStep) {
	d.add("planned %d, %d changes", p.Result.Planned, len(p.Result.Delta.Changes))
}
func (d *recorder) OnApply(p *engine.ApplyResult) {
	d.add("attempted %t full %t cleanup %t failed %t synced %t", p.Attempted, p.FullSync, p.Cleanup, p.Err != nil, p.Synced)
}
func (d *recorder) OnEvent(n engine.Event) { d.add("event %d failed %t", n.Kind, n.Err != nil) }

func TestObserverCallsAreOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fake.NewKernel(fake.Options{Now: time.Now, Linger: time.Second})
		r, d := newRig(t, k), &recorder{}
		r.observer = d
		r.run(fake.Open(k), nil, false)
		t.Cleanup(r.end)
		synctest.Wait()
		want := func(what string, lines ...string) {
			t.Helper()
			if got := d.take(); !slices.Equal(got, lines) {
				t.Errorf("%s:\n%q, want\n%q", what, got, lines)
			}
		}
		want("nothing is planned before the cluster is synced")
		r.emit(svc(), eps(1), synced)
		want("a start", "enqueued 3", "dequeued", "planned 1, 1 changes", "attempted true full true cleanup false failed false synced true")
		k.Inject(fake.Fault{At: 1, Err: syscall.EBUSY})
		r.emit(eps(1, 2))
		want("rejected", "enqueued 1", "dequeued", "planned 1, 1 changes", "attempted true full false cleanup false failed true synced false")
		r.emit(eps(1, 2))
		want("not retried before its time", "enqueued 1", "dequeued", "planned 1, 0 changes", "attempted false full false cleanup false failed false synced false")
		r.advance(30 * time.Millisecond)
		want("retried", "planned 0, 0 changes", "attempted true full true cleanup false failed false synced true")
		r.advance(2 * time.Second)
		want("cleaned up", "planned 0, 0 changes", "attempted true full false cleanup true failed false synced true")
		r.emit(eps(1, 2))
		want("nothing to do", "enqueued 1", "dequeued", "planned 1, 0 changes", "attempted false full false cleanup false failed false synced true")
	})
}
