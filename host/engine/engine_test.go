package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an engine over a fake kernel, run in a bubble of its own time.
type rig struct {
	t      *testing.T
	kernel *fake.Kernel
	engine *engine.Engine
	feed   chan []model.Change
	fail   chan error
	log    *lockedBuffer
	stop   context.CancelFunc
	ended  chan error
	pocket *pocket

	minSync  time.Duration
	ready    chan struct{}
	observer engine.Observer
	bound    policy.Selector // what the plugin's policy is for; nil: everything
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Run implements engine.Source.
func (r *rig) Run(ctx context.Context, emit func([]model.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.fail:
			return err
		case c := <-r.feed:
			emit(c)
		}
	}
}

func newRig(t *testing.T, k *fake.Kernel) *rig {
	return &rig{t: t, kernel: k, feed: make(chan []model.Change), fail: make(chan error), log: &lockedBuffer{}, ended: make(chan error, 1)}
}

func start(t *testing.T, o fake.Options, plugin policy.Plugin) *rig {
	o.Now = time.Now
	k := fake.NewKernel(o)
	r := newRig(t, k)
	r.run(fake.Open(k), plugin, false)
	t.Cleanup(r.end)
	return r
}

func (r *rig) run(b backend.Backend, plugin policy.Plugin, once bool) {
	settings := plan.Settings{Node: "n0", MasqueradeMark: 0x4000}
	if plugin != nil {
		settings.Policies = &policy.Set{
			Policies: map[string]*policy.Policy{"p": {Name: "p", Steps: []policy.Step{{Plugin: "p"}}}},
			Bindings: []policy.Binding{{Selector: r.bound, Policy: "p"}},
		}
	}
	o := engine.Options{
		Source: r, Backend: b, ConnTable: r.kernel, Once: once, MinSyncPeriod: r.minSync, Log: slog.New(slog.NewTextHandler(r.log, nil)), Observer: r.observer,
		Planner: plan.NewPlanner(settings, func(policy.Step) (policy.Plugin, error) { return plugin, nil }),
	}
	if r.pocket != nil {
		o.Checkpoint = r.pocket
	}
	if r.ready != nil {
		o.PluginsReady = r.ready
	}
	r.engine = engine.New(o)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.engine.Run(ctx) }()
}

func (r *rig) end() {
	r.stop()
	<-r.ended
}

// emit sends changes and waits until the engine has nothing more to do without time passing.
func (r *rig) emit(changes ...model.Change) {
	r.feed <- changes
	synctest.Wait()
}

func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var (
	web    = model.Name{Namespace: "shop", Name: "web"}
	key    = plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}
	synced = model.Change{Kind: model.Synced}
)

func svc() model.Change {
	return model.Change{Kind: model.ServiceKind, Name: web, Service: &model.Service{
		Name: web, ClusterIPs: []netip.Addr{key.Addr}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}}
}

// eps gives the Service endpoints by last byte; a negative one terminates and still serves.
func eps(last ...int) model.Change {
	s := &model.EndpointSlice{Name: web, Service: web, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for _, n := range last {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(max(n, -n))}), Ready: n > 0, Serving: true, Terminating: n < 0,
		})
	}
	return model.Change{Kind: model.SliceKind, Name: web, Slice: s}
}

// holds checks the weights that the kernel holds by last byte of the address; none means no frontend.
func (r *rig) holds(what string, want string) {
	r.t.Helper()
	p, _ := r.kernel.Table(fake.Name)
	var got []string
	if f := p.Frontends[key]; f != nil {
		for _, m := range f.Pool.Members {
			a := m.Addr.Addr().As4()
			got = append(got, fmt.Sprintf("%d:%d", a[3], m.Weight))
		}
		got = append(got, f.Pool.Verdict.String())
	}
	if g := strings.Join(got, " "); g != want {
		r.t.Fatalf("%s: the kernel holds %q, want %q\n%s", what, g, want, r.log)
	}
}

func TestAChangeIsProgrammedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2))
		r.holds("before the state is complete", "")
		r.emit(synced)
		r.holds("complete", "1:1 2:1 forward")
		r.emit(eps(1, 2, 3))
		r.holds("one more", "1:1 2:1 3:1 forward")
		r.emit(eps())
		r.holds("none left", "reject")
		r.emit(model.Change{Kind: model.ServiceKind, Name: web})
		r.holds("no Service", "")
	})
}

func TestAnEqualObjectSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2), synced)
		before := r.kernel.Stats()
		r.emit(svc(), eps(2, 1))
		r.pass(time.Hour)
		if after := r.kernel.Stats(); after.Applies != before.Applies {
			t.Fatalf("%d applies for nothing", after.Applies-before.Applies)
		}
	})
}

func TestAFailedApplyIsRetriedUntilItHolds(t *testing.T) {
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
					r.pass(100 * time.Millisecond)
					r.holds("retried", "3:1 forward")
					r.pass(time.Minute)
					if n := r.kernel.Stats().Applies - before; n != 2 {
						t.Errorf("%d applies, want the one that failed and one retry", n)
					}
				})
			})
		}
	}
}

func TestADataPlaneThatStaysBrokenIsRetriedWithBackOff(t *testing.T) {
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
		r.pass(time.Minute)
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

func TestWhatMakeBeforeBreakLeavesIsTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{Linger: 5 * time.Millisecond}, nil)
		r.emit(svc(), eps(1, 2), synced)
		r.emit(eps(1))
		if r.kernel.Leftovers() == 0 {
			t.Fatal("the fake left nothing behind: the test proves nothing")
		}
		r.pass(10 * time.Millisecond)
		if n := r.kernel.Leftovers(); n != 0 {
			t.Fatalf("%d leftovers", n)
		}
	})
}

// stages gives a terminating endpoint 50 % for 10 s, then nothing, and resets its connections after 20 s.
type stages struct{}

func (stages) Decide(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		resp.Answers[i].Weight = 2
		if e.Conditions&abi.Terminating != 0 {
			gone := req.Now - e.TerminatingSince
			resp.Answers[i].ResetAfterMS = uint32(max(0, 20_000-gone))
			if gone < 10_000 {
				resp.Answers[i].Weight = 1
				resp.Requeue = time.Duration(10_000-gone) * time.Millisecond
			} else {
				resp.Answers[i].Weight = 0
			}
		}
	}
	return nil
}
func (stages) Needs() uint32    { return 0 }
func (stages) Revision() string { return "1" }

func TestADrainGoesThroughItsStagesAndEndsInAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, stages{})
		r.emit(svc(), eps(1, 2), synced)
		r.holds("before", "1:2 2:2 forward")
		established := 0
		for port := range uint16(40) {
			from := netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), 1000+port)
			if c := r.kernel.Connect(fake.Packet{From: from, To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.TCP}); c.Member.Addr().As4()[3] == 1 {
				established++
			}
		}
		if established == 0 {
			t.Fatal("no connection to the member that leaves")
		}
		to1 := func() (n int) {
			for _, c := range r.kernel.Conns() {
				if c.Member.Addr().As4()[3] == 1 {
					n++
				}
			}
			return n
		}
		r.emit(eps(-1, 2))
		r.holds("stage one", "1:1 2:2 forward")
		r.pass(9 * time.Second)
		r.holds("still stage one", "1:1 2:2 forward")
		r.pass(2 * time.Second)
		r.holds("the end", "1:0 2:2 forward")
		if to1() != established {
			t.Fatalf("%d of %d established connections are left before the reset", to1(), established)
		}
		r.pass(10 * time.Second)
		if to1() != 0 {
			t.Fatalf("%d connections are left after the reset\n%s", to1(), r.log)
		}
		if n := strings.Count(r.log.String(), "connections reset"); n != 1 {
			t.Fatalf("%d resets\n%s", n, r.log)
		}
	})
}

func TestABurstIsTakenInOneGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1), synced)
		before := r.kernel.Stats().Applies
		// The engine is held while the burst comes in.
		held, let := make(chan struct{}), make(chan struct{})
		go r.engine.Do(context.Background(), func(*plan.Planner) { close(held); <-let })
		<-held
		for n := range 100 {
			r.feed <- []model.Change{eps(1 + n%5)}
		}
		r.feed <- []model.Change{eps(7)}
		close(let)
		synctest.Wait()
		r.holds("after the burst", "7:1 forward")
		if n := r.kernel.Stats().Applies - before; n > 3 {
			t.Fatalf("%d applies for a burst", n)
		}
	})
}

func TestARestartWithoutChangeWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2), synced)
		r.stop()
		<-r.ended
		r.holds("stopped, and still forwarding", "1:1 2:1 forward")
		before := r.kernel.Stats()
		r.run(fake.Open(r.kernel), nil, false)
		r.emit(svc(), eps(1, 2), synced)
		if after := r.kernel.Stats(); after.Messages != before.Messages {
			t.Fatalf("%d messages", after.Messages-before.Messages)
		}
	})
}

func TestOnceEndsWhenTheStateHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fake.NewKernel(fake.Options{Linger: 5 * time.Millisecond, Now: time.Now})
		r := newRig(t, k)
		r.run(fake.Open(k), nil, true)
		r.feed <- []model.Change{svc(), eps(1), synced}
		if err := <-r.ended; err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.holds("after it ended", "1:1 forward")
	})
}

// looksAfter always asks for another Apply.
type looksAfter struct{ backend.Backend }

func (b looksAfter) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	r, err := b.Backend.Apply(ctx, next, d)
	r.RequeueAfter = time.Minute
	return r, err
}

func TestOnceDoesNotWaitForWhatOnlyTimeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fake.NewKernel(fake.Options{})
		r := newRig(t, k)
		r.run(looksAfter{fake.Open(k)}, nil, true)
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

func TestASourceThatFailsEndsTheEngineWithItsError(t *testing.T) {
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

func TestMinSyncTakesALongBurstInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{}))
		r.minSync = time.Second
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.pass(time.Second)
		before := r.kernel.Stats().Applies
		for n := range 50 { // 5 s of changes
			r.emit(eps(2 + n))
			r.pass(100 * time.Millisecond)
		}
		if n := r.kernel.Stats().Applies - before; n < 4 || n > 6 {
			t.Fatalf("%d applies in five seconds", n)
		}
		r.emit(eps(9))
		r.pass(time.Second)
		r.holds("the last change", "9:1 forward")
	})
}

// pocket is a checkpoint in memory.
type pocket struct {
	text   []byte
	stores int
}

func (p *pocket) Load() ([]byte, error) {
	if p.text == nil {
		return nil, fs.ErrNotExist
	}
	return p.text, nil
}

func (p *pocket) Store(b []byte) error {
	p.text, p.stores = b, p.stores+1
	return nil
}

func TestADrainGoesOnWhereItWasAfterARestart(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
				r.pocket = &pocket{}
				r.run(fake.Open(r.kernel), stages{}, false)
				t.Cleanup(r.end)
				r.emit(svc(), eps(1, 2), synced)
				r.emit(eps(-1, 2))
				r.pass(8 * time.Second)
				if how == "killed" { // what a kill leaves is what was stored by then
					left := *r.pocket
					r.pocket = &left
				}
				r.stop()
				<-r.ended
				r.run(fake.Open(r.kernel), stages{}, false)
				r.emit(svc(), eps(-1, 2), synced)
				r.holds("going on", "1:1 2:2 forward")
				r.pass(3 * time.Second)
				r.holds("the stage ends at its time", "1:0 2:2 forward")
			})
		})
	}
}

func TestADamagedCheckpointIsSaidAndStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.pocket = &pocket{text: []byte("{")}
		r.run(fake.Open(r.kernel), stages{}, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(-1, 2), synced)
		r.holds("planned all the same", "1:1 2:2 forward")
		if !strings.Contains(r.log.String(), "checkpoint cannot be used") {
			t.Fatalf("not said:\n%s", r.log)
		}
	})
}

func TestNothingIsStoredWhileNothingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.pocket = &pocket{}
		r.run(fake.Open(r.kernel), stages{}, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1, 2), synced)
		r.pass(time.Minute)
		before := r.pocket.stores
		r.pass(time.Hour)
		if before == 0 || r.pocket.stores != before {
			t.Fatalf("%d stores, then %d", before, r.pocket.stores)
		}
	})
}

func TestUDPFlowsOfAnEndpointThatStoppedServingAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		udp := func(c model.Change) model.Change {
			if c.Service != nil {
				c.Service.Ports[0].Protocol = model.UDP
			} else {
				c.Slice.Ports[0].Protocol = model.UDP
			}
			return c
		}
		r := start(t, fake.Options{}, nil)
		r.emit(udp(svc()), udp(eps(1, 2)), synced)
		for port := range uint16(40) {
			r.kernel.Connect(fake.Packet{
				From: netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), 1000+port), To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.UDP,
			})
		}
		to := func(last byte) (n int) {
			for _, c := range r.kernel.Conns() {
				if c.Member.Addr().As4()[3] == last {
					n++
				}
			}
			return n
		}
		one, two := to(1), to(2)
		if one == 0 || two == 0 {
			t.Fatalf("%d and %d flows", one, two)
		}
		r.emit(udp(eps(-1, 2)))
		if to(1) != one {
			t.Fatalf("flows to an endpoint that terminates and still serves are gone: %d of %d", to(1), one)
		}
		r.emit(udp(eps(2)))
		if to(1) != 0 || to(2) != two {
			t.Fatalf("%d flows to the endpoint that is gone, %d of %d to the one that stays", to(1), to(2), two)
		}
	})
}

// slow takes a while for each call, as a plugin may within its fuel.
type slow struct{}

func (slow) Decide(req *abi.Request, resp *abi.Response) error {
	time.Sleep(20 * time.Millisecond)
	for i := range resp.Answers {
		resp.Answers[i].Weight = 3
	}
	return nil
}
func (slow) Needs() uint32    { return 0 }
func (slow) Revision() string { return "1" }

func TestSlowPluginsOfManyServicesDoNotMakeAnotherServiceWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.bound = policy.Selector{{Key: "slow", Op: policy.Exists}}
		r.run(fake.Open(r.kernel), slow{}, false)
		t.Cleanup(r.end)
		changes := []model.Change{svc(), eps(1, 2)}
		const many = 200 // 4 s of plugin time
		for i := range many {
			n := model.Name{Namespace: "slow", Name: fmt.Sprint("s", i)}
			s, e := *svc().Service, *eps(1, 2).Slice
			s.Name, s.Labels, s.ClusterIPs = n, map[string]string{"slow": ""}, []netip.Addr{netip.AddrFrom4([4]byte{10, 97, 0, byte(i)})}
			e.Name, e.Service = n, n
			changes = append(changes, model.Change{Kind: model.ServiceKind, Name: n, Service: &s}, model.Change{Kind: model.SliceKind, Name: n, Slice: &e})
		}
		r.feed <- append(changes, synced)
		r.pass(100 * time.Millisecond)
		r.holds("the other Service", "1:1 2:1 forward")
		p, _ := r.kernel.Table(fake.Name)
		if len(p.Frontends) != many+1 {
			t.Fatalf("%d frontends: those that wait for their plugin have the default rules", len(p.Frontends))
		}
		r.feed <- []model.Change{eps(1, 2, 3)}
		r.pass(100 * time.Millisecond)
		r.holds("a change in the middle of it", "1:1 2:1 3:1 forward")
		r.pass(5 * time.Second)
		decided := 0
		p, _ = r.kernel.Table(fake.Name)
		for _, f := range p.Frontends {
			if f.Pool.Members[0].Weight == 3 {
				decided++
			}
		}
		if decided != many {
			t.Fatalf("%d of %d Services have their plugin's answer", decided, many)
		}
	})
}
