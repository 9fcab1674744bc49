package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// nodeClock is the clock of a node, on top of the bubble's. Timers do not see what is set here, as on a real node.
type nodeClock struct {
	booted time.Time
	set    atomic.Int64 // by how much the wall clock was set, ns
	slept  atomic.Int64 // how long the node was suspended, ns
	boot   string
}

func newNodeClock() *nodeClock { return &nodeClock{booted: time.Now(), boot: "1"} }

func (c *nodeClock) read() engine.ClockReading {
	now, slept := time.Now(), time.Duration(c.slept.Load())
	return engine.ClockReading{
		Wall: now.Add(slept + time.Duration(c.set.Load())), SinceBoot: now.Sub(c.booted) + slept, Boot: c.boot,
	}
}

// elapsed returns how long ago the node was booted.
func (c *nodeClock) elapsed() time.Duration { return c.read().SinceBoot }

// drain makes connections to an endpoint, lets it terminate and returns a function that returns how many of them are left.
func (r *rig) drain() (left func() int) {
	r.t.Helper()
	r.emit(svc(), eps(1, 2), synced)
	left = func() (n int) {
		for _, c := range r.kernel.Conns() {
			if c.Endpoint.Addr().As4()[3] == 1 {
				n++
			}
		}
		return n
	}
	for port := uint16(1000); left() == 0; port++ {
		from := netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), port)
		r.kernel.Connect(fake.Packet{From: from, To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.TCP})
	}
	r.emit(eps(-1, 2))
	r.expect("stage one", "1:1 2:2 forward")
	return left
}

// requestTimes is stagedDrain, which records how far the times of its requests are from the true ones.
type requestTimes struct {
	stagedDrain
	clock *nodeClock
	skew  map[time.Duration]bool
}

func (p *requestTimes) Decide(req *abi.Request, resp *abi.Response) error {
	p.skew[time.Duration(req.Now)*time.Millisecond-p.clock.elapsed().Truncate(time.Second)] = true
	return p.stagedDrain.Decide(req, resp)
}

// TestDrainTakesTrueTime while the wall clock is set and the machine is suspended, at any times.
func TestDrainTakesTrueTime(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 0))
				r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
				plugin := &requestTimes{clock: r.clock, skew: map[time.Duration]bool{}}
				r.run(fake.Open(r.kernel), plugin, false)
				t.Cleanup(r.end)
				left, start := r.drain(), r.clock.elapsed()
				for {
					switch rng.IntN(3) {
					case 0:
						r.clock.set.Add(rng.Int64N(int64(4*time.Hour)) - int64(2*time.Hour))
					case 1:
						r.clock.slept.Add(rng.Int64N(int64(8 * time.Second)))
						r.advance(time.Second) // to notice it
					default:
						r.advance(time.Duration(rng.Int64N(int64(3 * time.Second))))
					}
					synctest.Wait()
					elapsed := r.clock.elapsed() - start
					stage := "1:1 2:2 forward"
					if elapsed >= 10*time.Second {
						stage = "1:0 2:1 forward"
					}
					r.expect(fmt.Sprint("after ", elapsed), stage)
					if reset := left() == 0; reset != (elapsed >= 20*time.Second) {
						t.Fatalf("reset after %s: %t\n%s", elapsed, reset, r.log)
					}
					if elapsed > 25*time.Second {
						break
					}
				}
				if len(plugin.skew) != 1 {
					t.Fatalf("the clock of requests was set: %v", plugin.skew)
				}
			})
		})
	}
}

func TestDrainTakesTrueTimeAcrossARestart(t *testing.T) {
	for _, set := range []time.Duration{0, time.Hour, -time.Hour, 1700 * time.Millisecond, -400 * time.Millisecond} {
		t.Run(set.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
				r.checkpoint = &memoryCheckpoint{}
				r.run(fake.Open(r.kernel), stagedDrain{}, false)
				left := r.drain()
				r.advance(5 * time.Second)
				r.end()
				r.clock.set.Add(int64(set))
				time.Sleep(time.Second)
				r.clock.slept.Add(int64(time.Second)) // 7 s
				r.run(fake.Open(r.kernel), stagedDrain{}, false)
				t.Cleanup(r.end)
				r.emit(svc(), eps(-1, 2), synced)
				r.advance(2900 * time.Millisecond)
				r.expect("still stage one", "1:1 2:2 forward")
				r.advance(100 * time.Millisecond)
				r.expect("stage two", "1:0 2:1 forward")
				r.advance(9900 * time.Millisecond)
				if left() == 0 {
					t.Fatal("the reset came early")
				}
				r.advance(100 * time.Millisecond)
				if left() != 0 {
					t.Fatal("no reset")
				}
				if strings.Contains(r.log.String(), "before the machine was booted") {
					t.Errorf("%s", r.log)
				}
			})
		})
	}
}

func TestDrainStartsOverAfterAReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.checkpoint = &memoryCheckpoint{}
		r.run(fake.Open(r.kernel), stagedDrain{}, false)
		r.drain()
		r.advance(9 * time.Second)
		r.end()
		r.clock = newNodeClock()
		r.clock.boot = "2"
		r.clock.set.Add(int64(time.Hour)) // the machine was off for so long, or its clock is wrong
		r.run(fake.Open(r.kernel), stagedDrain{}, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(-1, 2), synced)
		r.advance(9900 * time.Millisecond)
		r.expect("stage one again", "1:1 2:2 forward")
		r.advance(100 * time.Millisecond)
		r.expect("stage two", "1:0 2:1 forward")
		if !strings.Contains(r.log.String(), "before the machine was booted") {
			t.Errorf("not logged:\n%s", r.log)
		}
	})
}

func TestSetWallClockIsLoggedAndShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, stagedDrain{})
		r.drain()
		resetAt := func() (at time.Time) {
			if err := r.engine.Do(context.Background(), func(p *planner.Planner) {
				x, err := p.Explain(web)
				if err != nil {
					t.Error(err)
					return
				}
				at = r.engine.WallTime(x.Decisions[0].Cluster.ResetAt[0])
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return at
		}
		for _, set := range []time.Duration{0, time.Hour, -2 * time.Hour} {
			r.clock.set.Add(int64(set))
			if want := r.clock.read().Wall.Add(20 * time.Second); !resetAt().Equal(want) {
				t.Errorf("set by %s: reset at %s, want %s", set, resetAt(), want)
			}
		}
		if got := strings.Count(r.log.String(), "the wall clock was set"); got != 2 {
			t.Errorf("logged %d times, want 2\n%s", got, r.log)
		}
	})
}

// planCounter counts the steps that plan.
type planCounter struct {
	engine.Observers
	plans int
}

func (c *planCounter) OnPlan(*engine.PlannedStep) { c.plans++ }

func TestWaitingForAStagePlansNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &planCounter{}
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.observer = count
		r.run(fake.Open(r.kernel), stagedDrain{}, false)
		t.Cleanup(r.end)
		r.drain()
		before := count.plans
		r.advance(9 * time.Second)
		if count.plans != before {
			t.Fatalf("%d plans without a reason", count.plans-before)
		}
	})
}
