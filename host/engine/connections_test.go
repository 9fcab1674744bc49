package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

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
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedConnections}}
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
		r, o := startOpen(t, &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedConnections}}, time.Millisecond)
		r.advance(10*time.Second + 100*time.Millisecond)
		if n := len(o.dumpTimes()); n != 11 {
			t.Errorf("%d dumps in 10 s", n)
		}
	})
}

func TestOpenConnectionsAreNotCountedWithoutANeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}
		r, o := startOpen(t, p, time.Millisecond)
		r.advance(10 * time.Second)
		if _, last := p.calls(); len(o.dumpTimes()) != 0 || last.ConnectionsAgeMS != abi.NoAge {
			t.Errorf("%d dumps", len(o.dumpTimes()))
		}
	})
}

func TestFailingCountOfConnectionsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := startOpen(t, &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedConnections}}, time.Millisecond)
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
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedConnections}}
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
