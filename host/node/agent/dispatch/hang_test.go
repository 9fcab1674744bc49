package dispatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestPluginsThatHangDelayOnlyThemselves: more of them than there are workers, which use no CPU time; shadows do not delay other
// shadows either. When their calls have ended, no more calls run at the same time than before.
func TestPluginsThatHangDelayOnlyThemselves(t *testing.T) {
	name := func(name string) string { return name }
	for _, c := range []struct {
		what    string
		name    func(string) string
		workers int
	}{{"one worker", name, 1}, {"two workers", name, 2}, {"shadows", policy.ShadowPlugin, 1}} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, 10, c.workers)
				b.opts.threadCPU = func() time.Duration { return 0 }
				good, hung := &sleeper{took: 50 * time.Microsecond}, &sleeper{took: 5 * time.Second}
				const hanging = 3
				for i := range hanging {
					for port := range 10 {
						b.call(0, call(hung, c.name(fmt.Sprint("hung", i)), "a", "x", port))
					}
				}
				synctest.Wait()
				begin := time.Now()
				for n := range 100 {
					b.call(0, call(good, c.name("good"), "a", "x", n))
					for asked := time.Now(); len(good.called()) == n; {
						time.Sleep(time.Millisecond)
						if synctest.Wait(); time.Since(asked) > (hanging+1)*slow {
							t.Fatalf("call %d has not begun after %s", n, time.Since(asked))
						}
					}
				}
				if took := time.Since(begin); len(hung.called()) != hanging || took > 300*time.Millisecond {
					t.Errorf("%d calls of plugins that hang; 100 of another one took %s", len(hung.called()), took)
				}
				hung.set(0, nil)
				time.Sleep(6 * time.Second)
				busy := &sleeper{took: 10 * time.Millisecond}
				for i := range 5 {
					b.call(0, call(busy, c.name(fmt.Sprint("busy", i)), "a", "x", 1))
				}
				time.Sleep(time.Millisecond)
				if synctest.Wait(); len(busy.called()) != c.workers {
					t.Errorf("%d calls at the same time with %d workers", len(busy.called()), c.workers)
				}
				time.Sleep(time.Second)
			})
		})
	}
}

// TestPluginThatWaitsAlmostAsLongAsItMayTakesTurns: it uses no CPU time, unlike the other one, and has always calls to make.
func TestPluginThatWaitsAlmostAsLongAsItMayTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 10, 1)
		b.opts.threadCPU = func() time.Duration { return 0 }
		good, waits := &sleeper{took: 50 * time.Microsecond}, &sleeper{took: slow - time.Millisecond}
		b.Limit(10, []string{"good", "waits"})
		large := call(good, "good", "a", "x", 1)
		large.Request.Endpoints = make([]abi.Endpoint, 500_000)
		b.call(time.Second, large)
		for n := range 50 {
			for port := range maxNamespaceCalls / 2 {
				b.call(0, call(waits, "waits", "a", "x", port))
			}
			synctest.Wait()
			b.call(0, call(good, "good", "a", "x", 1))
			time.Sleep(slow)
			if synctest.Wait(); len(good.called()) != n+2 {
				t.Fatalf("call %d has not been made after %s", n, slow)
			}
		}
		waits.set(0, nil)
	})
}
