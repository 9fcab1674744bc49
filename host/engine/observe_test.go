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
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
)

// diary writes down what an observer is told.
type diary struct {
	mu     sync.Mutex
	lines  []string
	queued bool
}

func (d *diary) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// take gives the lines since the last take.
func (d *diary) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.lines
	d.lines = nil
	return out
}

func (d *diary) OnEnqueue(c []model.Change, _ time.Time) {
	d.add("queued %d", len(c))
	d.queued = true
}

// OnDequeue is written down when there was something to take.
func (d *diary) OnDequeue() {
	if d.queued {
		d.add("taken")
		d.queued = false
	}
}

func (d *diary) OnPlan(p *engine.PlannedStep) {
	d.add("planned %d, %d changes", p.Step.Planned, len(p.Step.Delta.Changes))
}
func (d *diary) OnApply(p *engine.ApplyResult) {
	d.add("tried %t whole %t cleanup %t failed %t held %t", p.Attempted, p.FullSync, p.Cleanup, p.Err != nil, p.Synced)
}
func (d *diary) OnEvent(n engine.Event) { d.add("noted %d failed %t", n.Kind, n.Err != nil) }

func TestAnObserverIsToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fake.NewKernel(fake.Options{Now: time.Now, Linger: time.Second})
		r, d := newRig(t, k), &diary{}
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
		want("a start", "queued 3", "taken", "planned 1, 1 changes", "tried true whole true cleanup false failed false held true")
		k.Inject(fake.Fault{At: 1, Err: syscall.EBUSY})
		r.emit(eps(1, 2))
		want("refused", "queued 1", "taken", "planned 1, 1 changes", "tried true whole false cleanup false failed true held false")
		r.emit(eps(1, 2))
		want("not tried before its time", "queued 1", "taken", "planned 1, 0 changes", "tried false whole false cleanup false failed false held false")
		r.pass(30 * time.Millisecond)
		want("tried again", "planned 0, 0 changes", "tried true whole true cleanup false failed false held true")
		r.pass(2 * time.Second)
		want("cleaned up", "planned 0, 0 changes", "tried true whole false cleanup true failed false held true")
		r.emit(eps(1, 2))
		want("nothing to do", "queued 1", "taken", "planned 1, 0 changes", "tried false whole false cleanup false failed false held true")
	})
}
