package planner

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// chainPlugin keeps weights, and counts its calls by Service.
type chainPlugin struct {
	policytest.Plugin
	calls map[string]int
}

func (c *chainPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	c.calls[req.Namespace+"/"+req.Service]++
	for i := range req.Endpoints {
		resp.Results[i].Value = req.Endpoints[i].Capacity
	}
	return nil
}

// chainBed is a cluster with a chain of three plugins on every Service: Service web of namespace shop, and many of namespace
// crowd.
type chainBed struct {
	*Planner
	plugins map[string]*chainPlugin
	failed  *failures
	now     time.Time
}

func newChainBed(t *testing.T, services int) *chainBed {
	b := &chainBed{plugins: map[string]*chainPlugin{}, failed: &failures{}, now: time.Unix(1000, 0)}
	chain := &policy.Policy{Name: "chain"}
	for i, name := range []string{"a", "b", "c"} {
		b.plugins[name] = &chainPlugin{calls: map[string]int{}}
		if i == 0 {
			b.plugins[name].Inputs = abi.NeedOutcomes
		}
		chain.Steps = append(chain.Steps, policy.Step{Plugin: name})
	}
	settings := testSettings()
	settings.OutcomeNeeds = abi.NeedOutcomes
	settings.Policies = &policy.Set{Policies: map[string]*policy.Policy{"chain": chain}, Default: "chain"}
	b.Planner = New(settings, func(name string) (policy.Plugin, error) { return b.plugins[name], nil })
	planInSteps(b.Planner)
	b.UseSignals(b.failed)
	changes := chainService(model.Name{Namespace: "shop", Name: "web"}, 0)
	for i := range services - 1 {
		changes = append(changes, chainService(crowd(i), 1+i)...)
	}
	b.Apply(append(changes, model.Change{Kind: model.Synced}))
	b.PlanNow(b.now)
	if n := b.calls(); n != 3*services {
		t.Fatalf("%d calls for %d Services", n, services)
	}
	return b
}

func crowd(i int) model.Name { return model.Name{Namespace: "crowd", Name: fmt.Sprint("s", i)} }

// chainService has ten endpoints of its own.
func chainService(name model.Name, i int) []model.Change {
	return []model.Change{{Kind: model.ServiceKind, Name: name, Service: &model.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}}, chainSlice(name, i, 0)}
}

// chainSlice returns a slice of which the first endpoints are not ready.
func chainSlice(name model.Name, i, unready int) model.Change {
	s := &model.EndpointSlice{Name: name, Service: name, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for j := range 10 {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: chainEndpoint(i, j).Addr.Addr(), Ready: j >= unready, Serving: j >= unready})
	}
	return model.Change{Kind: model.SliceKind, Name: name, Slice: s}
}

func chainEndpoint(i, j int) model.EndpointKey {
	n := 10*i + j
	return model.EndpointKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}), 8080), Protocol: model.TCP}
}

// calls returns the number of calls since the last time.
func (b *chainBed) calls() (sum int) {
	for _, n := range b.byService() {
		sum += n
	}
	return sum
}

// byService returns the calls since the last time.
func (b *chainBed) byService() map[string]int {
	out := map[string]int{}
	for _, p := range b.plugins {
		for name, n := range p.calls {
			out[name] += n
		}
		clear(p.calls)
	}
	return out
}

// change makes n endpoints of Service web unready.
func (b *chainBed) change(n int) {
	b.Apply([]model.Change{chainSlice(model.Name{Namespace: "shop", Name: "web"}, 0, n)})
}

// ready returns the number of endpoints in the pool of Service web.
func (b *chainBed) ready() int {
	return len(b.Current().Frontends[plan.Key{Addr: netip.MustParseAddr("10.96.0.0"), Port: 80, Protocol: model.TCP}].Pool.Endpoints)
}

// TestChangeAsksForOneService, whatever the size of the cluster.
func TestChangeAsksForOneService(t *testing.T) {
	b := newChainBed(t, 10_000)
	b.change(1)
	b.now = b.now.Add(time.Second)
	step := b.PlanNow(b.now)
	if got := b.byService(); step.Planned != 1 || len(got) != 1 || got["shop/web"] != 3 || b.ready() != 9 {
		t.Errorf("%d Services planned, calls %v, %d endpoints", step.Planned, got, b.ready())
	}
	b.now = b.now.Add(time.Hour)
	if step = b.PlanNow(b.now); step.Planned != 0 || b.calls() != 0 {
		t.Errorf("an hour later: %d Services planned", step.Planned)
	}
}

// TestManyFailuresDisturbNoOtherService: 1,000 endpoints of as many Services fail at once, become unready at once, or are all
// asked about again because of a new revision of a plugin. Meanwhile a change of another Service is in the next Plan, which does
// not work on anything else at least every other time, and never on more than a Plan may.
func TestManyFailuresDisturbNoOtherService(t *testing.T) {
	const services, failing = 10_000, 1000
	for name, c := range map[string]struct {
		begin func(*chainBed)
		calls int // for the other Services
	}{
		"unready": {func(b *chainBed) {
			for i := range failing {
				b.Apply([]model.Change{chainSlice(crowd(i), 1+i, 1)})
			}
		}, 3 * failing},
		"outcomes": {func(b *chainBed) {
			var list []outcomes.Change
			for i := range failing {
				list = append(list, outcomes.Change{Key: chainEndpoint(1+i, 0), Refused: 1, Failed: true})
			}
			b.failed.reading = 1
			b.AddOutcomes(b.now, time.Second, list)
		}, failing}, // the answer of the first plugin stays the same
		"revision": {func(b *chainBed) {
			b.plugins["c"].Code = "2"
			b.PluginsReloaded()
		}, services - 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newChainBed(t, services)
			c.begin(b)
			sum, steps := 0, 0
			for remaining := 1; remaining > 0; steps++ {
				if steps == 3000 {
					t.Fatal("no end")
				}
				changed := steps%3 > 0
				if changed {
					b.change(1 + steps%5)
				}
				remaining = b.PlanNow(b.now).Remaining
				calls := b.byService()
				if changed && b.ready() != 9-steps%5 {
					t.Fatalf("step %d: the change of the other Service is not in the plan", steps)
				}
				delete(calls, "shop/web")
				for n := range maps.Values(calls) {
					sum += n
				}
				if most := maxStepCost / callCost; len(calls) > most {
					t.Fatalf("step %d: plugins are called for %d other Services, at most %d are expected", steps, len(calls), most)
				}
			}
			if sum != c.calls {
				t.Errorf("%d calls, want %d", sum, c.calls)
			}
			t.Logf("%d steps", steps)
		})
	}
}

// TestServiceIsPlannedTwiceAtMostForAChain counts how often Services are planned while the queue of the plugins has room for a
// few of them: once for the first call, and again with the answer of the last one.
func TestServiceIsPlannedTwiceAtMostForAChain(t *testing.T) {
	const services, room = 200, 8
	b, l := newChainBed(t, services), &lateCaller{limit: room}
	for _, c := range b.plugins {
		c.Code = "2"
	}
	b.PluginsReloaded()
	planned, steps := 0, 0
	for remaining := 1; remaining+len(l.queued) > 0; steps++ {
		if steps == 3*services {
			t.Fatal("no end")
		}
		step := l.plan(b.Planner, b.now)
		planned, remaining = planned+step.Planned, step.Remaining
		if len(l.queued) > 0 {
			remaining = 1
		}
		l.answer(b.Planner, room/2, b.now)
	}
	if n := b.calls(); n != 3*services || b.Awaited() != 0 || len(l.places) != 0 {
		t.Errorf("%d calls, %d decisions and %d places wait", n, b.Awaited(), len(l.places))
	}
	if planned > 2*services {
		t.Errorf("%d Services planned %d times", services, planned)
	}
	t.Logf("planned %d times in %d steps", planned, steps)
}

// TestChangeIsPlannedBeforeTheBacklog: while a large Service is planned in parts, a change of another one has a Plan of its own.
func TestChangeIsPlannedBeforeTheBacklog(t *testing.T) {
	b := newChainBed(t, 2)
	b.Configure(testSettings()) // without plugins
	for b.PlanNow(b.now).Remaining > 0 {
	}
	giant := model.Name{Namespace: "crowd", Name: "giant"}
	s := slice(giant, 5000)
	for i := range s.Endpoints {
		s.Endpoints[i].Addr = chainEndpoint(100, i).Addr.Addr()
	}
	b.Apply([]model.Change{{Kind: model.SliceKind, Name: giant, Slice: s}, {Kind: model.ServiceKind, Name: giant, Service: &model.Service{
		Name: giant, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.0.1")}, Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}},
	}}})
	b.PlanNow(b.now)
	var alone []bool
	for i := range 6 {
		b.change(1 + i%5)
		step := b.PlanNow(b.now)
		if b.ready() != 9-i%5 || step.Remaining == 0 || step.RequeueAt.IsZero() {
			t.Fatalf("step %d: %d endpoints, %d remain, next at %v", i, b.ready(), step.Remaining, step.RequeueAt)
		}
		alone = append(alone, len(step.Delta.Changes) == 1)
	}
	for i := range alone[1:] {
		if alone[i] == alone[i+1] {
			t.Fatalf("Plans with the change alone: %v, want every other", alone)
		}
	}
	for n := 0; b.PlanNow(b.now).Remaining > 0; n++ {
		if n == 1000 {
			t.Fatal("no end")
		}
	}
}
