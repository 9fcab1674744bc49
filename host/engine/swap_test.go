package engine_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/host/backend/fake"
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
