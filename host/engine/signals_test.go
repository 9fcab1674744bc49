package engine_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestPluginSeesRefusedConnectionsWithinAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}
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
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}
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
			if err := r.engine.Do(context.Background(), func(pl *planner.Planner) { p.Inputs = needs; pl.PluginsReloaded() }); err != nil {
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
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}
		r, b := startSignals(t, p, nil)
		r.advance(500 * time.Millisecond)
		b.set(func() { b.took = 300 * time.Millisecond })
		for i := range 8 {
			r.advance(200 * time.Millisecond)
			begin := time.Now()
			r.emit(eps(1, 2, 3+i%2))
			r.expect("a change while a reading runs", []string{"1:1 2:1 3:1 forward", "1:1 2:1 4:1 forward"}[i%2])
			if took := time.Since(begin); took != 0 {
				t.Errorf("the change took %s", took)
			}
		}
	})
}

// TestChangesDoNotInterruptReadings: neither small ones all the time, nor a Service with thousands of endpoints, which takes many
// steps.
func TestChangesDoNotInterruptReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, plans := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}, &planCounter{}
		r, b := startSignals(t, p, func(r *rig) {
			r.observer = plans
			r.selector = policy.Selector{{Key: "large", Op: policy.DoesNotExist}}
		})
		r.advance(500 * time.Millisecond)
		r.kernel.SetResponse(endpointKey(1), fake.Refuses)
		b.set(func() { b.took = 50 * time.Millisecond })
		before := b.readings()
		for i := range 100 {
			r.connect(1)
			r.advance(20 * time.Millisecond)
			r.emit(eps(1, 2, 3+i%2))
		}
		if n := b.readings() - before; n != 2 {
			t.Errorf("%d readings in 2 s", n)
		}
		if n, last := p.calls(); last.Endpoints[0].Outcomes.TotalRefused == 0 {
			t.Errorf("%d calls, %+v", n, last.Endpoints[0].Outcomes)
		}
		b.set(func() { b.took = 500 * time.Millisecond })
		r.advance(time.Second)
		large := model.Name{Namespace: "shop", Name: "large"}
		s := &model.EndpointSlice{Name: large, Service: large, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
		for i := range 5000 {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), Ready: true, Serving: true})
		}
		readings, steps := b.readings(), plans.plans
		r.emit(model.Change{Kind: model.SliceKind, Name: large, Slice: s}, model.Change{Kind: model.ServiceKind, Name: large, Service: &model.Service{
			Name: large, Labels: map[string]string{"large": ""}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")},
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}})
		if n := b.readings() - readings; n != 0 || plans.plans-steps < 5 {
			t.Errorf("%d readings were begun in %d steps while one runs", n, plans.plans-steps)
		}
	})
}

func TestReadingsTakeABoundedShareOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := startSignals(t, &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}, func(r *rig) { r.signalsPeriod = time.Second })
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
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}
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
		r, b := startSignals(t, &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}, nil)
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
		p := &signalsPlugin{Plugin: policytest.Plugin{Inputs: abi.NeedOutcomes}}
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
