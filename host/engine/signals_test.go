package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// signalsPlugin gives each endpoint the weight 1 and records requests.
type signalsPlugin struct {
	needs uint32
	mu    sync.Mutex
	seen  []abi.Request
	at    []time.Time
}

func (p *signalsPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := *req
	r.Endpoints = slices.Clone(req.Endpoints)
	p.seen, p.at = append(p.seen, r), append(p.at, time.Now())
	for i := range resp.Results {
		resp.Results[i].Weight = 1
	}
	return nil
}
func (p *signalsPlugin) Needs(string) uint32 { return p.needs }
func (*signalsPlugin) Revision() string      { return "1" }
func (*signalsPlugin) Keys(string) []string  { return nil }

// calls returns how often the plugin was called, and the last request.
func (p *signalsPlugin) calls() (n int, last abi.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) > 0 {
		last = p.seen[len(p.seen)-1]
	}
	return len(p.seen), last
}

// countingBackend is a fake backend whose readings can take long or fail. It checks that calls do not overlap.
type countingBackend struct {
	*fake.Backend
	t *testing.T

	mu    sync.Mutex
	busy  bool
	took  time.Duration // of a reading
	deaf  bool          // it does not end with its context
	fail  error
	reads int
}

func (b *countingBackend) enter() func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		b.t.Error("calls of the backend overlap")
	}
	b.busy = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.busy = false
	}
}

func (b *countingBackend) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	defer b.enter()()
	return b.Backend.Apply(ctx, p, d)
}

func (b *countingBackend) ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error) {
	defer b.enter()()
	b.mu.Lock()
	b.reads++
	took, deaf, fail := b.took, b.deaf, b.fail
	b.mu.Unlock()
	if took > 0 {
		done := ctx.Done()
		if deaf {
			done = nil
		}
		select {
		case <-time.After(took):
		case <-done:
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	return b.Backend.ReadOutcomes(context.WithoutCancel(ctx))
}

func (b *countingBackend) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *countingBackend) readings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reads
}

// eventLine is the line of a recorder for an event.
func eventLine(kind engine.EventKind, failed bool) string {
	return fmt.Sprintf("event %d failed %t", kind, failed)
}

func endpointKey(last byte) model.EndpointKey {
	return model.EndpointKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, last}), 8080), Protocol: model.TCP}
}

func startSignals(t *testing.T, p *signalsPlugin, change func(*rig)) (*rig, *countingBackend) {
	k := fake.NewKernel(fake.Options{Now: time.Now})
	r := newRig(t, k)
	r.signalsPeriod = time.Second
	r.observer = &recorder{}
	if change != nil {
		change(r)
	}
	b := &countingBackend{Backend: fake.Open(k), t: t}
	r.run(b, p, false)
	t.Cleanup(r.end)
	r.emit(svc(), eps(1, 2), synced)
	return r, b
}

// connect makes connections through the Service.
func (r *rig) connect(n int) {
	for range n {
		r.kernel.Connect(fake.Packet{From: netip.MustParseAddrPort("10.244.9.9:0"), To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.TCP})
	}
}

func TestPluginSeesRefusedConnectionsWithinAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedOutcomes}
		r, _ := startSignals(t, p, nil)
		r.advance(3 * time.Second)
		if n, _ := p.calls(); n != 1 {
			t.Fatalf("%d calls without a connection", n)
		}
		r.connect(20)
		r.advance(2 * time.Second)
		if n, _ := p.calls(); n != 1 {
			t.Fatalf("%d calls: answered connections are no reason", n)
		}
		r.kernel.SetResponse(endpointKey(1), fake.Refuses)
		r.connect(20)
		r.advance(1100 * time.Millisecond)
		n, last := p.calls()
		if n != 2 {
			t.Fatalf("%d calls after a failure", n)
		}
		o := last.Endpoints[0].Outcomes
		if last.OutcomesWindowMS != 1000 || o.Refused == 0 || o.Refused != o.Attempts || o.TotalAnswered == 0 || uint64(o.Refused) != o.TotalRefused {
			t.Errorf("window %d ms, %+v", last.OutcomesWindowMS, o)
		}
		if last.Endpoints[1].Outcomes.Refused != 0 {
			t.Errorf("%+v", last.Endpoints[1].Outcomes)
		}
		r.advance(5 * time.Second)
		if n, _ := p.calls(); n != 2 {
			t.Errorf("%d calls without a new failure", n)
		}
	})
}

func TestPluginSeesUnansweredConnectionsWithinTwoPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedOutcomes}
		r, _ := startSignals(t, p, nil)
		r.kernel.SetResponse(endpointKey(2), fake.Silent)
		r.advance(1500 * time.Millisecond)
		r.connect(20)
		r.advance(2 * time.Second)
		n, last := p.calls()
		if o := last.Endpoints[1].Outcomes; n != 2 || o.Unanswered == 0 || uint64(o.Unanswered) != o.TotalAttempts {
			t.Errorf("%d calls, %+v", n, o)
		}
	})
}

func TestNothingIsReadWithoutANeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{}
		r, b := startSignals(t, p, nil)
		r.connect(5)
		r.advance(time.Minute)
		if n := b.readings(); n != 0 {
			t.Errorf("%d readings", n)
		}
	})
}

func TestReadingBeginsAndEndsWithTheNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{}
		r, b := startSignals(t, p, nil)
		need := func(needs uint32) {
			if err := r.engine.Do(context.Background(), func(pl *planner.Planner) { p.needs = needs; pl.PluginsReloaded() }); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		need(abi.NeedOutcomes)
		r.advance(10*time.Second + 100*time.Millisecond)
		if n := b.readings(); n != 11 {
			t.Errorf("%d readings in 10 s", n)
		}
		need(0)
		r.advance(time.Hour)
		need(abi.NeedOutcomes)
		r.kernel.SetResponse(endpointKey(1), fake.Refuses)
		r.connect(20)
		r.advance(1100 * time.Millisecond)
		_, last := p.calls()
		if o := last.Endpoints[0].Outcomes; last.OutcomesWindowMS != 1000 || o.Refused == 0 || o.TotalRefused != uint64(o.Refused) {
			t.Errorf("the first window after a pause: %d ms, %+v", last.OutcomesWindowMS, o)
		}
	})
}

func TestSlowReadingDelaysNoService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedOutcomes}
		r, b := startSignals(t, p, nil)
		r.advance(500 * time.Millisecond)
		b.set(func() { b.took = 300 * time.Millisecond })
		for i := range 8 { // one change during each reading
			r.advance(600 * time.Millisecond)
			begin := time.Now()
			r.emit(eps(1, 2, 3+i%2))
			r.expect("a change while a reading runs", []string{"1:1 2:1 3:1 forward", "1:1 2:1 4:1 forward"}[i%2])
			if took := time.Since(begin); took != 0 {
				t.Errorf("the change took %s", took)
			}
		}
		b.set(func() { b.took = 0 })
		before := b.readings()
		r.advance(10 * time.Second)
		if n := b.readings() - before; n < 5 {
			t.Errorf("%d readings in 10 s afterwards", n)
		}
	})
}

// TestReadingDoesNotStartDuringABacklog: the next step would interrupt it. A Service with thousands of endpoints takes many steps.
func TestReadingDoesNotStartDuringABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plans := &planCounter{}
		r, b := startSignals(t, &signalsPlugin{needs: abi.NeedOutcomes}, func(r *rig) {
			r.observer = plans
			r.selector = policy.Selector{{Key: "large", Op: policy.DoesNotExist}}
		})
		b.set(func() { b.took = 300 * time.Millisecond })
		r.advance(1100 * time.Millisecond) // a reading runs
		large := model.Name{Namespace: "shop", Name: "large"}
		s := &model.EndpointSlice{Name: large, Service: large, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
		for i := range 5000 {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), Ready: true, Serving: true})
		}
		readings, before := b.readings(), plans.plans
		r.emit(model.Change{Kind: model.SliceKind, Name: large, Slice: s}, model.Change{Kind: model.ServiceKind, Name: large, Service: &model.Service{
			Name: large, Labels: map[string]string{"large": ""}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")},
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}})
		steps := plans.plans - before
		if n := b.readings() - readings; n > 1 || steps < 5 {
			t.Errorf("%d readings were begun again in %d steps", n, steps)
		}
		r.advance(time.Second)
		if b.readings() == readings {
			t.Error("no reading afterwards")
		}
	})
}

func TestReadingThatIsInterruptedTooOftenIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedOutcomes}
		r, b := startSignals(t, p, nil)
		r.advance(500 * time.Millisecond)
		r.kernel.SetResponse(endpointKey(1), fake.Refuses)
		r.connect(20)
		b.set(func() { b.took = 50 * time.Millisecond })
		for i := range 400 { // a change each 20 ms: no reading has the time that it takes
			r.advance(20 * time.Millisecond)
			r.emit(eps(1, 2, 3+i%2))
		}
		if n, last := p.calls(); last.Endpoints[0].Outcomes.TotalRefused == 0 {
			t.Errorf("%d calls, %+v after 8 s", n, last.Endpoints[0].Outcomes)
		}
	})
}

func TestReadingsTakeABoundedShareOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := startSignals(t, &signalsPlugin{needs: abi.NeedOutcomes}, func(r *rig) { r.signalsPeriod = time.Second })
		b.set(func() { b.took = 200 * time.Millisecond })
		before := b.readings()
		time.Sleep(84 * time.Second)
		synctest.Wait()
		if n := b.readings() - before; n < 15 || n > 21 {
			t.Errorf("%d readings of 200 ms in 84 s, want one each 4.2 s", n)
		}
	})
}

func TestFailingReadingIsReportedAndMakesOutcomesUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedOutcomes}
		r, b := startSignals(t, p, nil)
		r.connect(5)
		r.advance(3 * time.Second)
		b.set(func() { b.fail = errors.New("nftables: read outcomes: no memory") })
		r.advance(30 * time.Second)
		if n := strings.Count(r.log.String(), "no memory"); n != 1 {
			t.Errorf("the failure was logged %d times:\n%s", n, r.log)
		}
		failed := 0
		for _, line := range r.observer.(*recorder).take() {
			if line == eventLine(engine.OutcomesRead, true) {
				failed++
			}
		}
		if failed < 10 {
			t.Errorf("%d failures were counted", failed)
		}
		r.emit(eps(1, 2, 3))
		r.expect("a change", "1:1 2:1 3:1 forward")
		if _, last := p.calls(); last.OutcomesWindowMS != 0 || last.Endpoints[0].Outcomes != (abi.Outcomes{}) {
			t.Errorf("%d ms, %+v", last.OutcomesWindowMS, last.Endpoints[0].Outcomes)
		}
		b.set(func() { b.fail = nil })
		r.advance(3 * time.Second)
		r.emit(eps(1, 2))
		if _, last := p.calls(); last.OutcomesWindowMS == 0 {
			t.Error("still unknown")
		}
	})
}

func TestStoppingEndsAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, b := startSignals(t, &signalsPlugin{needs: abi.NeedOutcomes}, nil)
		b.set(func() { b.took = time.Hour })
		r.advance(1100 * time.Millisecond)
		r.stop()
		synctest.Wait()
		select {
		case err := <-r.ended:
			r.ended <- err
		default:
			t.Error("the engine waits for the reading")
		}
	})
}

func TestAnotherBackendStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedOutcomes}
		r, _ := startSignals(t, p, nil)
		r.kernel.SetResponse(endpointKey(1), fake.Refuses)
		r.connect(20)
		r.advance(2 * time.Second)
		calls, _ := p.calls()
		other := fake.NewKernel(fake.Options{Now: time.Now})
		if _, err := r.engine.Swap(context.Background(), &countingBackend{Backend: fake.Open(other), t: t}); err != nil {
			t.Fatal(err)
		}
		r.advance(5 * time.Second)
		r.emit(eps(1, 2, 3))
		n, last := p.calls()
		if o := last.Endpoints[0].Outcomes; n != calls+1 || last.OutcomesWindowMS == 0 || o.TotalAttempts != 0 {
			t.Errorf("%d calls, %d ms, %+v", n-calls, last.OutcomesWindowMS, o)
		}
	})
}

// openTable is a connection tracking table with open connections, whose dump takes CPU time.
type openTable struct {
	*fake.Kernel
	mu    sync.Mutex
	open  map[model.EndpointKey]uint32
	cpu   time.Duration
	fail  error
	dumps []time.Time
}

func (o *openTable) CountConnections(_ context.Context, count map[model.EndpointKey]uint32) error {
	time.Sleep(o.cpu)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dumps = append(o.dumps, time.Now())
	for k := range count {
		count[k] = o.open[k]
	}
	return o.fail
}

// dumpTimes returns when the table was dumped.
func (o *openTable) dumpTimes() []time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.dumps)
}

func startOpen(t *testing.T, p *signalsPlugin, cpu time.Duration) (*rig, *openTable) {
	o := &openTable{open: map[model.EndpointKey]uint32{endpointKey(1): 7}, cpu: cpu}
	r, _ := startSignals(t, p, func(r *rig) { o.Kernel, r.connTable = r.kernel, o })
	return r, o
}

func TestOpenConnectionsHaveAnAgeAndGrowByAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedConnections}
		r, o := startOpen(t, p, time.Second)
		r.advance(30 * time.Second)
		r.connect(20)
		r.advance(2 * time.Second)
		r.emit(eps(1, 2, 3))
		_, last := p.calls()
		if last.ConnectionsAgeMS < 30_000 || last.ConnectionsAgeMS > 32_000 {
			t.Errorf("age %d ms after a dump 32 s ago", last.ConnectionsAgeMS)
		}
		sum := last.Endpoints[0].Connections + last.Endpoints[1].Connections
		if sum != 7+20 || last.Endpoints[0].Connections <= 7 {
			t.Errorf("%d and %d open connections, want 7 and 0 with 20 more", last.Endpoints[0].Connections, last.Endpoints[1].Connections)
		}
		if n := last.Endpoints[2].Connections; n != abi.ConnectionsUnknown {
			t.Errorf("%d connections to an endpoint that no dump has counted", n)
		}
		if len(o.dumpTimes()) != 1 {
			t.Errorf("%d dumps of a second each in 32 s", len(o.dumpTimes()))
		}
		r.advance(70 * time.Second)
		if at := o.dumpTimes(); len(at) != 2 || at[1].Sub(at[0]) < 100*time.Second {
			t.Errorf("dumps at %v", at)
		}
	})
}

func TestOpenConnectionsAreCountedOncePerPeriodAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := startOpen(t, &signalsPlugin{needs: abi.NeedConnections}, time.Millisecond)
		r.advance(10*time.Second + 100*time.Millisecond)
		if n := len(o.dumpTimes()); n != 11 {
			t.Errorf("%d dumps in 10 s", n)
		}
	})
}

func TestOpenConnectionsAreNotCountedWithoutANeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{needs: abi.NeedOutcomes}
		r, o := startOpen(t, p, time.Millisecond)
		r.advance(10 * time.Second)
		if _, last := p.calls(); len(o.dumpTimes()) != 0 || last.ConnectionsAgeMS != abi.NoAge {
			t.Errorf("%d dumps", len(o.dumpTimes()))
		}
	})
}

func TestFailingCountOfConnectionsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := startOpen(t, &signalsPlugin{needs: abi.NeedConnections}, time.Millisecond)
		o.mu.Lock()
		o.fail = errors.New("conntrack: count connections: no memory")
		o.mu.Unlock()
		r.advance(10 * time.Second)
		if n := strings.Count(r.log.String(), "counting open connections failed"); n != 1 {
			t.Errorf("the failure was logged %d times:\n%s", n, r.log)
		}
	})
}

// ownCounts is a backend that counts open connections itself, as IPVS does, and no outcomes.
type ownCounts struct {
	*countingBackend
	counts int
}

func (o *ownCounts) CountConnections(ctx context.Context, frontends []plan.Key, count map[model.EndpointKey]uint32) error {
	defer o.enter()()
	o.mu.Lock()
	o.counts++
	took := o.took
	o.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	if !slices.Equal(frontends, []plan.Key{key}) {
		o.t.Errorf("frontends %v", frontends)
	}
	for k := range count {
		count[k] = uint32(k.Addr.Addr().As4()[3])
	}
	return nil
}

func TestSlowCountByTheBackendDelaysNoService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caps := fake.Everything()
		caps.Outcomes = false
		k := fake.NewKernel(fake.Options{Now: time.Now, Caps: caps})
		r := newRig(t, k)
		r.signalsPeriod = time.Second
		b := &ownCounts{countingBackend: &countingBackend{Backend: fake.Open(k), t: t}}
		p := &signalsPlugin{needs: abi.NeedConnections}
		r.run(b, p, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1, 2), synced)
		r.advance(1500 * time.Millisecond)
		r.emit(eps(1, 2, 3))
		_, last := p.calls()
		if last.ConnectionsAgeMS != 500 || last.Endpoints[1].Connections != 2 || last.Endpoints[2].Connections != abi.ConnectionsUnknown {
			t.Errorf("age %d ms, %+v", last.ConnectionsAgeMS, last.Endpoints)
		}
		b.set(func() { b.took = time.Hour })
		r.advance(1100 * time.Millisecond)
		for i := range 4 { // a count runs all the time
			begin := time.Now()
			r.emit(eps(1, 2, 3+i%2))
			if took := time.Since(begin); took != 0 {
				t.Errorf("the change took %s", took)
			}
			r.expect("a change while a count runs", []string{"1:1 2:1 3:1 forward", "1:1 2:1 4:1 forward"}[i%2])
			r.advance(100 * time.Millisecond)
		}
	})
}
