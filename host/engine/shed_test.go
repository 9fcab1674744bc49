package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// shedding sheds a fifth of the connections of the endpoint 10.244.0.1 once there are three endpoints.
func shedding(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		resp.Results[i].Value = abi.One
		if len(req.Endpoints) > 2 && req.Endpoints[i].Addr.Addr().As4()[3] == 1 {
			resp.Results[i].ShedPermille = 200
		}
	}
	resp.RequeueAfter = 7 * time.Second // the same answer again and again
	return nil
}

// shedLoad makes connections until one endpoint has n, and returns functions that return how many are left to it, and of all.
func (r *rig) shedLoad(n int) (left, all func() int) {
	r.t.Helper()
	to := func(last byte) (n int) {
		for _, c := range r.kernel.Conns() {
			if last == 0 || c.Endpoint.Addr().As4()[3] == last {
				n++
			}
		}
		return n
	}
	r.emit(svc(), eps(1, 2), synced)
	for port := 0; to(1) < n; port++ {
		for range n / 4 {
			port++
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 9, byte(port / 30000)}), uint16(1024+port%30000))
			r.kernel.Connect(fake.Packet{From: from, To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.TCP})
		}
	}
	return func() int { return to(1) }, func() int { return to(0) }
}

// countingObserver counts the connections that are shed.
type countingObserver struct {
	engine.Observers
	shed int
}

func (o *countingObserver) OnEvent(e engine.Event) {
	if e.Kind == engine.ConnectionsShed {
		o.shed += e.Count
	}
}

// TestShedTakesAMinuteOfTrueTime while the wall clock is set, the machine is suspended and sluice restarts, at any times: no
// connection is reset early, none twice, and in no second more than the limit.
func TestShedTakesAMinuteOfTrueTime(t *testing.T) {
	seeds := uint64(10)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 0))
				r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
				r.checkpoint = &memoryCheckpoint{}
				counted := &countingObserver{}
				r.observer = counted
				r.run(fake.Open(r.kernel), policytest.Plugin{Answer: shedding}, false)
				t.Cleanup(func() { r.end() })
				left, all := r.shedLoad(1000)
				n, others := left(), all()-left()
				r.emit(eps(1, 2, 3))
				at := r.clock.elapsed().Truncate(time.Second) // requests have whole seconds
				before := n
				for range 110 {
					if gone := n - left(); gone > 0 {
						due := float64(n) * 0.2 * min(1, (r.clock.elapsed()-at).Seconds()/60)
						if float64(gone) > due+60 { // 4 standard deviations
							t.Fatalf("%d of %d are reset after %s\n%s", gone, n, r.clock.elapsed()-at, r.log)
						}
					}
					switch rng.IntN(24) {
					case 0:
						r.clock.set.Add(rng.Int64N(int64(4*time.Hour)) - int64(2*time.Hour))
					case 1:
						r.clock.slept.Add(rng.Int64N(int64(20 * time.Second)))
					case 2:
						if seed%2 == 0 {
							r.advance(2 * time.Second) // the checkpoint is written
							r.end()
							r.run(fake.Open(r.kernel), policytest.Plugin{Answer: shedding}, false)
							r.emit(svc(), eps(1, 2, 3), synced)
							before = left()
						}
					default:
						r.advance(time.Second)
						if by := before - left(); float64(by) > 0.02*float64(n)+20 { // twice the limit: two steps may be in this second
							t.Fatalf("%d of %d connections in a second\n%s", by, n, r.log)
						}
						before = left()
					}
				}
				gone := n - left()
				if low := 140.0; seed%2 == 1 && float64(gone) < low || gone > 260 {
					t.Errorf("%d of %d connections are reset, want about a fifth\n%s", gone, n, r.log)
				}
				if all()-left() != others || counted.shed != gone {
					t.Errorf("%d of %d other connections are left; %d were counted, %d are gone", all()-left(), others, counted.shed, gone)
				}
				r.advance(5 * time.Minute)
				if now := n - left(); now != gone {
					t.Errorf("the same answer has reset %d more", now-gone)
				}
			})
		})
	}
}

// failingTable fails to shed.
type failingTable struct {
	*fake.Kernel
	calls int
}

func (f *failingTable) Shed(context.Context, []plan.Shed, backend.Resetter) (plan.ResetCount, []bool, error) {
	f.calls++
	return plan.ResetCount{}, nil, errors.New("no memory")
}

func TestFailingShedIsRetriedWithoutDelayingAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		table := &failingTable{Kernel: r.kernel}
		r.connTable = table
		r.run(fake.Open(r.kernel), policytest.Plugin{Answer: shedding}, false)
		t.Cleanup(r.end)
		r.shedLoad(10)
		r.emit(eps(1, 2, 3))
		r.advance(2 * time.Second)
		r.emit(eps(1, 2, 3, 4))
		r.expect("meanwhile", "1:1 2:1 3:1 4:1 forward")
		r.advance(58 * time.Second)
		if table.calls < 5 || table.calls > 7 {
			t.Errorf("%d calls in a minute, want one every 10 s", table.calls)
		}
		if n := strings.Count(r.log.String(), "no memory"); n != table.calls {
			t.Errorf("%d of %d failures are logged\n%s", n, table.calls, r.log)
		}
	})
}

// uncertainTable has no room to remember what it resets as long as it is full.
type uncertainTable struct {
	*fake.Kernel
	full atomic.Bool
}

func (u *uncertainTable) Shed(ctx context.Context, sheds []plan.Shed, tcp backend.Resetter) (plan.ResetCount, []bool, error) {
	n, deferred, err := u.Kernel.Shed(ctx, sheds, tcp)
	if u.full.Load() {
		n.Uncertain = n.Connections
	}
	return n, deferred, err
}

func TestUncertainResetsAreLoggedWhenTheyBeginAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		table := &uncertainTable{Kernel: r.kernel}
		table.full.Store(true)
		r.connTable = table
		r.run(fake.Open(r.kernel), policytest.Plugin{Answer: shedding}, false)
		t.Cleanup(r.end)
		r.shedLoad(1000)
		r.emit(eps(1, 2, 3))
		r.advance(30 * time.Second)
		table.full.Store(false)
		r.advance(40 * time.Second)
		for _, line := range []string{"remembers no more", "remembered again"} {
			if n := strings.Count(r.log.String(), line); n != 1 {
				t.Errorf("%d lines %q\n%s", n, line, r.log)
			}
		}
	})
}

// remembering is a backend that is told of the connections to reset.
type remembering struct {
	*fake.Backend
	name string
}

func (*remembering) ResetTCP(context.Context, []plan.Connection) (int, error) { return 0, nil }

// askedTable records which backends are told of resets.
type askedTable struct {
	*fake.Kernel
	mu            sync.Mutex
	told          []string // "" for none
	shedding, end chan struct{}
}

// take returns which were told since the last call.
func (a *askedTable) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.told
	a.told = nil
	return told
}

func (a *askedTable) tell(tcp backend.Resetter) {
	name := ""
	if r, ok := tcp.(*remembering); ok {
		name = r.name
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, name)
}

func (a *askedTable) Shed(_ context.Context, _ []plan.Shed, tcp backend.Resetter) (plan.ResetCount, []bool, error) {
	a.tell(tcp)
	if a.shedding != nil {
		close(a.shedding)
		<-a.end
		a.shedding = nil
	}
	return plan.ResetCount{}, nil, nil
}

// TestResetsGoToTheBackendInUse: a switch of the backend waits for those in progress, the next ones go to the new backend, and to
// none if it has not to be told.
func TestResetsGoToTheBackendInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		table := &askedTable{Kernel: r.kernel, shedding: make(chan struct{}), end: make(chan struct{})}
		begun := table.shedding
		r.connTable = table
		r.run(&remembering{fake.Open(r.kernel), "first"}, policytest.Plugin{Answer: shedding}, false)
		t.Cleanup(r.end)
		r.shedLoad(10)
		r.emit(eps(1, 2, 3))
		<-begun
		for i, next := range []backend.Backend{&remembering{fake.Open(r.kernel), "second"}, fake.Open(r.kernel)} {
			swapped := make(chan struct{})
			go func() {
				defer close(swapped)
				if _, err := r.engine.Swap(context.Background(), next); err != nil {
					t.Error(err)
				}
			}()
			if i == 0 {
				synctest.Wait()
				select {
				case <-swapped:
					t.Error("the backend was switched while connections were reset")
				default:
				}
				close(table.end)
			}
			<-swapped
			table.take()
			r.advance(15 * time.Second)
			want := []string{"second", ""}[i]
			if told := table.take(); len(told) == 0 || slices.ContainsFunc(told, func(name string) bool { return name != want }) {
				t.Errorf("told %q, want %q", told, want)
			}
		}
	})
}
