package engine_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestFailedApplyIsRetriedUntilItSucceeds(t *testing.T) {
	for _, errno := range []syscall.Errno{
		syscall.EINTR, syscall.EAGAIN, syscall.ENOBUFS, syscall.EBUSY, syscall.ENOENT, syscall.EEXIST, syscall.EPERM, syscall.ENOMEM,
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(errno, lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := start(t, fake.Options{}, nil)
					r.emit(svc(), eps(1, 2), synced)
					before := r.kernel.Stats().Applies
					r.kernel.Inject(fake.Fault{At: 1, Err: errno, Lost: lost})
					r.emit(eps(3))
					if !strings.Contains(r.log.String(), errno.Error()) {
						t.Fatalf("the failure is not logged:\n%s", r.log)
					}
					r.advance(100 * time.Millisecond)
					r.expect("retried", "3:1 forward")
					r.advance(time.Minute)
					if n := r.kernel.Stats().Applies - before; n != 2 {
						t.Errorf("%d applies, want the one that failed and one retry", n)
					}
				})
			})
		}
	}
}

func TestPersistentFailureIsRetriedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &brokenBackend{}
		r := newRig(t, fake.NewKernel(fake.Options{}))
		r.run(b, nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		for range 100 { // changes in the meantime do not hammer it
			r.emit(eps(2))
			r.emit(eps(1))
		}
		r.advance(time.Minute)
		if b.applies < 10 || b.applies > 20 {
			t.Fatalf("%d tries in a minute", b.applies)
		}
	})
}

type brokenBackend struct{ applies int }

func (*brokenBackend) Caps() plan.Caps { return fake.Everything() }
func (b *brokenBackend) Apply(context.Context, *plan.Plan, *plan.Delta) (backend.Report, error) {
	b.applies++
	return backend.Report{}, syscall.EPERM
}
func (*brokenBackend) Read(context.Context) (*plan.Plan, error) { return nil, syscall.EPERM }
func (*brokenBackend) Close() error                             { return nil }

func TestRequeueAfterRemovesLeftovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{Linger: 5 * time.Millisecond}, nil)
		r.emit(svc(), eps(1, 2), synced)
		r.emit(eps(1))
		if r.kernel.Leftovers() == 0 {
			t.Fatal("the fake left nothing behind: the test proves nothing")
		}
		r.advance(10 * time.Millisecond)
		if n := r.kernel.Leftovers(); n != 0 {
			t.Fatalf("%d leftovers", n)
		}
	})
}
