package planner

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
)

// manyServices is a cluster of n Services with as many endpoints each, in two zones that they are hinted for.
func manyServices(n, endpoints int) []model.Change {
	hints := []*model.Hints{{Zones: []string{"z0"}}, {Zones: []string{"z1"}}}
	var out []model.Change
	for i := range n {
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}
		s := slice(name, endpoints)
		for j := range s.Endpoints {
			s.Endpoints[j].Hints = hints[j%2]
		}
		out = append(out, model.Change{Kind: model.ServiceKind, Name: name, Service: &model.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}},
		}}, model.Change{Kind: model.SliceKind, Name: name, Slice: s})
	}
	return append(out, ownNode("z0"), model.Change{Kind: model.Synced})
}

func ownNode(zone string) model.Change {
	return model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: &model.Node{Name: "n0", Zone: zone}}
}

// TestCostOfChangeIsIndependentOfClusterSize counts instead of measuring time: Services planned, frontends changed,
// and allocations.
func TestCostOfChangeIsIndependentOfClusterSize(t *testing.T) {
	costOf := func(services int) float64 {
		p := New(testSettings(), nativePlugins)
		planInSteps(p)
		p.Apply(manyServices(services, 10))
		now := time.Unix(1000, 0)
		if step := p.PlanNow(now); step.Planned != services || step.Remaining != 0 || len(step.Delta.Changes) != services {
			t.Fatalf("%d Services: %d planned at first, %d left, %d frontends", services, step.Planned, step.Remaining, len(step.Delta.Changes))
		}
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", services/2)}
		states := [2]model.Change{}
		for i := range states {
			states[i] = model.Change{Kind: model.SliceKind, Name: name, Slice: slice(name, 10+i)}
		}
		n := 0
		return testing.AllocsPerRun(200, func() {
			n++
			p.Apply(states[n%2 : n%2+1])
			if step := p.PlanNow(now); step.Planned != 1 || len(step.Delta.Changes) != 1 || step.Remaining != 0 {
				t.Fatalf("%d Services: %d planned, %d left, %d frontends changed by one slice", services, step.Planned, step.Remaining, len(step.Delta.Changes))
			}
		})
	}
	many := 44_125
	if testing.Short() {
		many = 10_000
	}
	small, large := costOf(1000), costOf(many)
	if large > small {
		t.Errorf("%.0f allocations with %d Services, %.0f with 1000", large, many, small)
	}
	if small > 25 {
		t.Errorf("%.0f allocations for a change of one endpoint", small)
	}
}

// TestAllocationsGrowWithServiceOnly: more endpoints take larger pieces of memory, not more of them.
func TestAllocationsGrowWithServiceOnly(t *testing.T) {
	costOf := func(endpoints int) float64 {
		p := New(testSettings(), nativePlugins)
		p.Apply(manyServices(10, endpoints))
		p.PlanNow(time.Unix(1000, 0))
		name, n := model.Name{Namespace: "shop", Name: "s5"}, 0
		states := [2]model.Change{}
		for i := range states {
			states[i] = model.Change{Kind: model.SliceKind, Name: name, Slice: slice(name, endpoints+i)}
		}
		return testing.AllocsPerRun(100, func() {
			n++
			p.Apply(states[n%2 : n%2+1])
			p.PlanNow(time.Unix(1000, 0))
		})
	}
	if few, lots := costOf(10), costOf(200); lots > few {
		t.Errorf("%.0f allocations with 200 endpoints, %.0f with 10", lots, few)
	}
}

func TestUnchangedFrontendsAreNotCopied(t *testing.T) {
	caps := plan.Caps{Ratios: true, MaxTotal: 1000, Balances: []plan.Balance{plan.Random}}
	f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}}
	for i := range 50 {
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Weight: 1})
	}
	if n := testing.AllocsPerRun(100, func() {
		fit := plan.NewFitter(&caps)
		if got := caps.Strip(fit.Fit(f)); got != f {
			t.Fatal("another one")
		}
	}); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// TestEndpointSizeIsSmall: there is one of each for every endpoint of the cluster.
func TestEndpointSizeIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(model.SliceEndpoint{}); n > 88 {
		t.Errorf("%d bytes an endpoint of a slice", n)
	}
	if n := unsafe.Sizeof(plan.Endpoint{}); n > 48 {
		t.Errorf("%d bytes an endpoint", n)
	}
}

// TestSharedChangesAreBatchedAndServiceChangesComeFirst: this node moves to another zone, and every Service with it.
func TestSharedChangesAreBatchedAndServiceChangesComeFirst(t *testing.T) {
	const services = 1000
	p := New(testSettings(), nativePlugins)
	planInSteps(p)
	all := manyServices(services, 4)
	p.Apply(all)
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	p.Apply([]model.Change{ownNode("z1")})
	steps := 0
	for left := services; ; steps++ {
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", services-1-steps)}
		p.Apply([]model.Change{{Kind: model.SliceKind, Name: name, Slice: slice(name, 7)}})
		all = append(all, model.Change{Kind: model.SliceKind, Name: name, Slice: slice(name, 7)})
		step := p.PlanNow(now)
		most := 1 // every other Plan plans only what has changed
		if steps%2 == 1 {
			most = 1 + maxStepCost/(2*elementCost) // two endpoints of each Service
		}
		if step.Planned > most {
			t.Fatalf("step %d planned %d Services", steps, step.Planned)
		}
		f := p.Current().Frontends[plan.Key{Addr: p.cluster.Services[name].ClusterIPs[0], Port: 80, Protocol: model.TCP}]
		if len(f.Pool.Endpoints) != 7 {
			t.Fatalf("step %d: the changed Service was not planned", steps)
		}
		if step.Remaining == 0 {
			break
		}
		if step.Remaining >= left || step.RequeueAt.IsZero() || step.RequeueAt.After(now) {
			t.Fatalf("step %d: %d left of %d, next at %v", steps, step.Remaining, left, step.RequeueAt)
		}
		left = step.Remaining
	}
	if steps < 4 {
		t.Errorf("%d steps for %d Services", steps, services)
	}
	scratch := New(testSettings(), nativePlugins)
	scratch.Apply(append(all, ownNode("z1")))
	scratch.PlanNow(now)
	if !scratch.Current().Equal(p.Current()) {
		t.Error("the plan of batches differs from the plan of one step")
	}
}

// TestFewChangesDoNotWaitForMany: a change in one namespace has a short step of its own while hundreds in another wait, and these
// go on whatever else changes.
func TestFewChangesDoNotWaitForMany(t *testing.T) {
	const services = 1000
	p := New(testSettings(), nativePlugins)
	planInSteps(p)
	all := manyServices(services, 4)
	other := model.Name{Namespace: "other", Name: "web"}
	all = append(all, model.Change{Kind: model.ServiceKind, Name: other, Service: &model.Service{Name: other,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.0.1")}, Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}}}})
	p.Apply(all)
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	change := func(name model.Name, n int) model.Change {
		return model.Change{Kind: model.SliceKind, Name: name, Slice: slice(name, n)}
	}
	var many []model.Change
	for i := range services {
		many = append(many, change(model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, 7))
	}
	p.Apply(many)
	alone, left := 0, services+1
	for steps := 0; left > 0; steps++ {
		p.Apply([]model.Change{change(other, 5+steps%2)})
		step := p.PlanNow(now)
		if n := len(p.Current().Frontends[plan.Key{Addr: netip.MustParseAddr("10.97.0.1"), Port: 80, Protocol: model.TCP}].Pool.Endpoints); n != 5+steps%2 {
			t.Fatalf("step %d: the other Service has %d endpoints", steps, n)
		}
		if step.Planned == 1 && step.Remaining > 1 {
			alone++
		}
		if left = step.Remaining; steps == services {
			t.Fatalf("%d Services still wait", left)
		}
	}
	if alone < 10 {
		t.Errorf("the other Service had %d steps of its own", alone)
	}
}

func TestStepCostFollowsStepDuration(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	planInSteps(p)
	p.Apply(manyServices(3000, 1))
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	p.AdaptStep(time.Minute)
	if p.stepCost != maxStepCost {
		t.Errorf("%d after a first Plan that took long", p.stepCost)
	}
	move := 0
	planned := func() int {
		move++
		p.Apply([]model.Change{ownNode(fmt.Sprint("z", move%2))})
		return p.PlanNow(now).Planned
	}
	steps := func(took time.Duration) (n int) {
		for range 20 {
			n = planned()
			p.AdaptStep(took)
		}
		return n
	}
	long, short := steps(time.Second), steps(targetStepTime/3)
	if p.stepCost != maxStepCost || long > 2*minStepCost/cost.Frontend || short < long*maxStepCost/minStepCost*3/4 {
		t.Errorf("cost %d; %d Services when steps take a second, %d when they take little", p.stepCost, long, short)
	}
	p.Apply([]model.Change{ownNode("z7")})
	for p.PlanNow(now).Remaining > 0 {
		p.AdaptStep(2 * time.Millisecond)
	}
	p.AdaptStep(time.Minute)
	name := model.Name{Namespace: "shop", Name: "s1"}
	p.Apply([]model.Change{{Kind: model.SliceKind, Name: name, Slice: slice(name, 3)}})
	p.PlanNow(now)
	before := p.stepCost
	p.AdaptStep(time.Minute)
	if p.stepCost != before {
		t.Errorf("%d instead of %d after a small step that took long", p.stepCost, before)
	}
}

// TestBatchedPlanEqualsUnboundedPlan: deferred Services are planned eventually, whatever changes meanwhile.
func TestBatchedPlanEqualsUnboundedPlan(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 77))
		p := New(testSettings(), nativePlugins)
		planInSteps(p)
		l := &lateCaller{limit: 2}
		scratch := New(testSettings(), nativePlugins)
		now := time.Unix(1000, 0)
		synced := []model.Change{{Kind: model.Synced}}
		p.Apply(synced)
		scratch.Apply(synced)
		for range 40 {
			c := []model.Change{randomChange(r)}
			p.Apply(c)
			scratch.Apply(c)
			l.plan(p, now)
			if r.IntN(5) > 0 {
				continue
			}
			for n := 0; ; n++ {
				l.answer(p, 2, now)
				if step := l.plan(p, now); step.Remaining == 0 && p.Awaited() == 0 && (step.RequeueAt.IsZero() || step.RequeueAt.After(now)) {
					break
				} else if n == 1000 {
					t.Fatalf("seed %d: no end, %d left", seed, step.Remaining)
				}
			}
			scratch.PlanNow(now)
			if !p.Current().Equal(scratch.Current()) {
				t.Fatalf("seed %d: in limited steps\n%s\nat once\n%s", seed, plan.Format(p.Current()), plan.Format(scratch.Current()))
			}
		}
	}
}

// TestChangeOfTheZoneIsSpread counts the allocations and the Services of the first Plan after this node's zone has changed, which
// a change of another Service has to wait for.
func TestChangeOfTheZoneIsSpread(t *testing.T) {
	first := func(services int) (allocations float64, planned int) {
		p := New(testSettings(), nativePlugins)
		planInSteps(p)
		changes := []model.Change{zoneOf("n0", "z0")}
		for i := range services {
			changes = append(changes, chainService(crowd(i), i)...)
		}
		p.Apply(append(changes, model.Change{Kind: model.Synced}))
		now := time.Unix(1000, 0)
		p.PlanNow(now)
		n := 0
		allocations = testing.AllocsPerRun(20, func() {
			n++
			p.Apply([]model.Change{zoneOf("n0", fmt.Sprint("z", n))})
			if r := p.PlanNow(now); r.Remaining > 0 && r.Planned > planned {
				planned = r.Planned
			}
		})
		return allocations, planned
	}
	few, _ := first(1000)
	many, planned := first(10_000)
	if planned == 0 || planned > 1000 || many > few+10 {
		t.Errorf("%.0f allocations, %d Services at once; with 1,000 Services %.0f", many, planned, few)
	}
}

func zoneOf(node, zone string) model.Change {
	return model.Change{Kind: model.NodeKind, Name: model.Name{Name: node}, Node: &model.Node{Name: node, Zone: zone}}
}
