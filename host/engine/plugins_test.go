package engine_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/dispatch"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// slowPlugin returns a plugin that gives all connections to the first endpoint after a time.
func slowPlugin(d time.Duration) policy.Plugin {
	return policytest.Plugin{Answer: func(_ *abi.Request, resp *abi.Response) error {
		time.Sleep(d)
		resp.Results[0].Value = abi.One
		return nil
	}}
}

// dispatched is an engine whose plugins are called by a dispatcher. plugin is bound to the Services with the label slow.
func dispatched(t *testing.T, plugin policy.Plugin) *rig {
	r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
	r.level = slog.LevelDebug
	d := dispatch.New(dispatch.Options{})
	r.plugins, r.selector = d, policy.Selector{{Key: "slow", Op: policy.Exists}}
	r.run(fake.Open(r.kernel), plugin, false)
	t.Cleanup(func() {
		r.end()
		if !d.Stop(time.Minute) {
			t.Error("a call does not end")
		}
	})
	return r
}

// slowServices are Services with the label slow and two endpoints each.
func slowServices(n int) (changes []model.Change) {
	for i := range n {
		name := model.Name{Namespace: "slow", Name: fmt.Sprint("s", i)}
		s, e := *svc().Service, *eps(1, 2).Slice
		s.Name, s.Labels, s.ClusterIPs = name, map[string]string{"slow": ""}, []netip.Addr{netip.AddrFrom4([4]byte{10, 97, 0, byte(i)})}
		e.Name, e.Service = name, name
		changes = append(changes, model.Change{Kind: model.ServiceKind, Name: name, Service: &s}, model.Change{Kind: model.SliceKind, Name: name, Slice: &e})
	}
	return changes
}

// decided returns how many frontends have the answer of slowPlugin.
func (r *rig) decided() (n int) {
	p, _ := r.kernel.Table(fake.Name)
	for _, f := range p.Frontends {
		if len(f.Pool.Endpoints) == 1 {
			n++
		}
	}
	return n
}

func TestSlowPluginsDoNotDelayOtherServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := dispatched(t, slowPlugin(20*time.Millisecond))
		const many = 200 // 4 s of plugin time
		r.feed <- append(append([]model.Change{svc(), eps(1, 2)}, slowServices(many)...), synced)
		r.advance(60 * time.Millisecond)
		r.expect("the other Service", "1:1 2:1 forward")
		if p, _ := r.kernel.Table(fake.Name); len(p.Frontends) != many+1 {
			t.Fatalf("%d frontends: those that wait for their plugin have the default rules", len(p.Frontends))
		}
		for n := range 40 {
			r.feed <- []model.Change{eps(1, 2, 3+n)}
			start := time.Now()
			synctest.Wait()
			r.expect("a change while plugins are called", fmt.Sprintf("1:1 2:1 %d:1 forward", 3+n))
			if took := time.Since(start); took > 0 {
				t.Fatalf("it waits for %s", took)
			}
			r.advance(31 * time.Millisecond)
		}
		r.advance(5 * time.Second)
		if n := r.decided(); n != many {
			t.Fatalf("%d of %d Services have their plugin's answer", n, many)
		}
	})
}

// TestFastAnswerIsProgrammedWithTheChange: there is no step in between with other weights.
func TestFastAnswerIsProgrammedWithTheChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := dispatched(t, slowPlugin(100*time.Microsecond))
		r.emit(append(slowServices(5), synced)...)
		r.advance(time.Second)
		if n := r.decided(); n != 5 {
			t.Fatalf("%d Services have their plugin's answer", n)
		}
		if n := strings.Count(r.log.String(), "synced services"); n != 0 {
			t.Fatalf("programmed %d times more than once\n%s", n, r.log)
		}
	})
}

func TestEngineStopsWhilePluginRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := dispatched(t, slowPlugin(30*time.Second))
		r.emit(append([]model.Change{svc(), eps(1)}, append(slowServices(3), synced)...)...)
		r.advance(time.Second)
		r.expect("the other Service", "1:1 forward")
		start := time.Now()
		r.stop()
		r.ended <- <-r.ended
		if took := time.Since(start); took > 0 {
			t.Errorf("it took %s to stop", took)
		}
	})
}

// TestOnceWaitsForPlugins, but not forever.
func TestOnceWaitsForPlugins(t *testing.T) {
	for _, c := range []struct {
		answers time.Duration
		decided int
		took    time.Duration
	}{
		{20 * time.Millisecond, 200, 5 * time.Second},
		{time.Second, 61, 63 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
			d := dispatch.New(dispatch.Options{})
			r.plugins = d
			r.run(fake.Open(r.kernel), slowPlugin(c.answers), true)
			start := time.Now()
			r.feed <- append(slowServices(200), synced)
			if err := <-r.ended; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > c.took || r.decided() < c.decided-2 {
				t.Errorf("%s: %d decisions after %s, want %d within %s", c.answers, r.decided(), took, c.decided, c.took)
			}
			r.stop()
			d.Stop(time.Minute)
		})
	}
}

// plans counts the steps and the Services that they plan.
type plans struct {
	engine.Observers
	steps, services atomic.Int64
}

func (p *plans) OnPlan(s *engine.PlannedStep) {
	p.steps.Add(1)
	p.services.Add(int64(s.Result.Planned))
}

// TestLargeServiceIsDecided: building the request takes longer than a step waits for answers. There must be an answer all the
// same, and no step without work.
func TestLargeServiceIsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const endpoints = 100_000
		counted := &plans{}
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		d := dispatch.New(dispatch.Options{CPUPercent: 10})
		r.plugins, r.observer = d, counted
		r.run(fake.Open(r.kernel), slowPlugin(100*time.Millisecond), false)
		t.Cleanup(func() { r.end(); d.Stop(time.Minute) })
		s := eps(1)
		for n := range endpoints - 1 {
			s.Slice.Endpoints = append(s.Slice.Endpoints, model.SliceEndpoint{
				Addr: netip.AddrFrom4([4]byte{10, 1 + byte(n>>16), byte(n >> 8), byte(n)}), Ready: true, Serving: true,
			})
		}
		r.emit(svc(), s, synced)
		r.advance(time.Second)
		if n := r.decided(); n != 1 {
			t.Fatal("no answer of the plugin is in force")
		}
		if n := counted.services.Load(); n > 3 {
			t.Errorf("the Service was planned %d times", n)
		}
		before := counted.steps.Load()
		r.advance(time.Minute)
		if more := counted.steps.Load() - before; more > 1 {
			t.Errorf("%d steps without a change", more)
		}
	})
}
