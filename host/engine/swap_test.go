package engine_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestSwapProgramsTheNewBackendFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := fake.NewKernel(fake.Options{})
		r := newRig(t, first)
		old := fake.Open(first)
		r.run(old, nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1, 2), synced)
		r.kernel = fake.NewKernel(fake.Options{})
		from, err := r.engine.Swap(context.Background(), fake.Open(r.kernel))
		if err != nil || from != old {
			t.Fatalf("got %v, %v", from, err)
		}
		r.expect("after the change", "1:1 2:1 forward")
		before := first.Stats().Applies
		r.emit(eps(3))
		r.expect("what comes after it", "3:1 forward")
		if now := first.Stats().Applies; now != before {
			t.Errorf("the first one is still used: %d, before %d", now, before)
		}
	})
}

func TestSwapFailsIfTheNewBackendFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		if _, err := r.engine.Swap(context.Background(), &brokenBackend{}); !errors.Is(err, syscall.EPERM) {
			t.Fatalf("got %v", err)
		}
		r.emit(eps(2))
		r.expect("afterwards", "2:1 forward")
	})
}

func TestSwapBeforeTheFirstSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		r.run(&brokenBackend{}, nil, false)
		t.Cleanup(r.end)
		if _, err := r.engine.Swap(context.Background(), fake.Open(r.kernel)); err != nil {
			t.Fatal(err)
		}
		r.emit(svc(), eps(1), synced)
		r.expect("the first plan", "1:1 forward")
	})
}

// TestSwapProgramsWhatFitsTheNewBackend: what the former backend could not represent is exact at once where the new one can, and
// the other way round; a swap that fails changes nothing.
func TestSwapProgramsWhatFitsTheNewBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		coarse := fake.Everything()
		coarse.CoarseAffinity = true
		r := newRig(t, fake.NewKernel(fake.Options{Caps: coarse}))
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		affine := svc()
		affine.Service.Affinity = 301 * time.Second
		r.emit(affine, eps(1, 2), synced)
		expect := func(when string, want time.Duration) {
			t.Helper()
			programmed, _ := r.kernel.Table(fake.Name)
			if f := programmed.Frontends[key]; f == nil || f.Affinity != want {
				t.Fatalf("%s: %+v, want an affinity of %s", when, f, want)
			}
		}
		expect("coarse timeouts", 315*time.Second)
		for _, c := range []struct {
			caps plan.Caps
			want time.Duration
		}{{fake.Everything(), 301 * time.Second}, {coarse, 315 * time.Second}} {
			if _, err := r.engine.Swap(context.Background(), &brokenBackend{}); err == nil {
				t.Fatal("no error")
			}
			r.kernel = fake.NewKernel(fake.Options{Caps: c.caps})
			if _, err := r.engine.Swap(context.Background(), fake.Open(r.kernel)); err != nil {
				t.Fatal(err)
			}
			expect("after the swap", c.want)
			synctest.Wait()
			expect("a step later", c.want)
			r.emit(eps(1, 2, 3))
			expect("after a change", c.want)
			r.emit(eps(1, 2))
		}
	})
}
