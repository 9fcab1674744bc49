package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
)

// lateCaller is a Caller with a queue of limited length, which answer empties.
type lateCaller struct {
	limit  int
	queued []*policy.Call
	calls  map[model.Name]int
}

func (l *lateCaller) Call(c *policy.Call) policy.Status {
	if i := slices.IndexFunc(l.queued, func(o *policy.Call) bool { return o.Key == c.Key && o.Name == c.Name }); i >= 0 {
		l.queued[i] = c
		return policy.Queued
	}
	if len(l.queued) >= l.limit {
		return policy.Refused
	}
	l.queued = append(l.queued, c)
	return policy.Queued
}

func (l *lateCaller) Room(string, string) bool { return len(l.queued) < l.limit }

func (l *lateCaller) ThrottledSince(string) time.Time { return time.Time{} }

// answer answers up to n calls.
func (l *lateCaller) answer(p *Planner, n int, now time.Time) {
	done := l.queued[:min(n, len(l.queued))]
	l.queued = slices.Clone(l.queued[len(done):])
	for _, c := range done {
		c.Do()
		if l.calls != nil {
			l.calls[c.Key.Port.Service]++
		}
	}
	p.Deliver(done, now)
}

// portedService is a Service that testSettings bind to a policy, with two endpoints for each of its ports.
func portedService(name model.Name, addr netip.Addr, ports int) []model.Change {
	svc := &model.Service{Name: name, Labels: map[string]string{"zoned": ""}, ClusterIPs: []netip.Addr{addr}}
	s := slice(name, 2)
	s.Ports = nil
	for i := range ports {
		port := fmt.Sprint("p", i)
		svc.Ports = append(svc.Ports, model.ServicePort{Name: port, Protocol: model.TCP, Port: uint16(80 + i)})
		s.Ports = append(s.Ports, model.SlicePort{Name: port, Protocol: model.TCP, Port: 8080})
	}
	return []model.Change{{Kind: model.ServiceKind, Name: name, Service: svc}, {Kind: model.SliceKind, Name: name, Slice: s}}
}

// TestNoServiceStarvesWhileCallsAreRefused: one Service has more ports than the queue has room, and another namespace has many
// Services.
func TestNoServiceStarvesWhileCallsAreRefused(t *testing.T) {
	const services = 40
	l := &lateCaller{limit: 3, calls: map[model.Name]int{}}
	p := New(testSettings(), func(string) (policy.Plugin, error) { return requeuePlugin{}, nil })
	p.CallThrough(l)
	p.PlanInBatches()
	var changes []model.Change
	for i := range services {
		name := model.Name{Namespace: "crowd", Name: fmt.Sprintf("s%02d", i)}
		changes = append(changes, portedService(name, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 1)...)
	}
	large, lone := model.Name{Namespace: "large", Name: "large"}, model.Name{Namespace: "shop", Name: "lone"}
	changes = append(changes, portedService(large, netip.MustParseAddr("10.97.0.1"), 30)...)
	changes = append(changes, portedService(lone, netip.MustParseAddr("10.97.0.2"), 1)...)
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	steps := 0
	for ; steps < 300; steps++ { // more calls come due in a second than are answered
		if steps == 10 && l.calls[lone] == 0 {
			t.Error("a Service waits for all Services of another namespace")
		}
		p.Plan(now)
		l.answer(p, 3, now)
		now = now.Add(100 * time.Millisecond)
	}
	for name, n := range l.calls {
		if n < 2 {
			t.Errorf("%d calls for %s", n, name)
		}
	}
	if len(l.calls) != services+2 {
		t.Fatalf("calls for %d of %d Services", len(l.calls), services+2)
	}
}

// TestLateAnswersOfManyPortsPlanServiceOnce counts how often a Service is planned while its 100 ports are answered one by one.
func TestLateAnswersOfManyPortsPlanServiceOnce(t *testing.T) {
	const ports = 100
	l := &lateCaller{limit: ports}
	p := New(testSettings(), nativePlugins)
	p.CallThrough(l)
	name := model.Name{Namespace: "shop", Name: "web"}
	p.Apply(append(portedService(name, netip.MustParseAddr("10.96.0.1"), ports), model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	p.Plan(now)
	planned, wake := 0, time.Time{}
	for range ports {
		now = now.Add(5 * time.Millisecond)
		l.answer(p, 1, now)
		step := p.Plan(now)
		planned += step.Planned
		wake = step.RequeueAt
	}
	if x, err := p.Explain(name); err != nil || !wake.IsZero() || x.Err != nil || p.Awaited() != 0 {
		t.Fatalf("%v, %+v, wake at %v", err, x, wake)
	}
	if most := ports*5/int(answerDelay/time.Millisecond) + 1; planned > most || planned < 2 {
		t.Errorf("planned %d times in half a second, want 2 to %d", planned, most)
	}
}

// TestRefusedCallsDoNotKeepThePlannerBusy: as long as there is no room, there is nothing to do.
func TestRefusedCallsDoNotKeepThePlannerBusy(t *testing.T) {
	l := &lateCaller{limit: 1}
	p := New(testSettings(), nativePlugins)
	p.CallThrough(l)
	p.PlanInBatches()
	var changes []model.Change
	for i := range 10 {
		changes = append(changes, portedService(model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 1)...)
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	if step := p.Plan(now); step.Planned != 10 || step.Remaining != 0 || !step.RequeueAt.IsZero() || len(step.Delta.Changes) != 10 {
		t.Fatalf("%d planned, %d frontends, %d remain, again at %v", step.Planned, len(step.Delta.Changes), step.Remaining, step.RequeueAt)
	}
	if p.Awaited() != 10 {
		t.Fatalf("%d decisions wait", p.Awaited())
	}
	planned := 0
	for range 10 {
		l.answer(p, 1, now)
		step := p.Plan(now)
		planned += step.Planned
	}
	if planned != 19 || p.Awaited() != 0 { // one with its answer and the next one in turn
		t.Errorf("planned %d Services, %d decisions wait", planned, p.Awaited())
	}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "s0"}}})
	p.Plan(now)
	if len(p.waiting) != 0 {
		t.Errorf("%d queues are left", len(p.waiting))
	}
}

// immediateCaller answers at once.
type immediateCaller struct{ lateCaller }

func (*immediateCaller) Call(c *policy.Call) policy.Status { c.Do(); return policy.Answered }

// stages is a Caller with a queue for each plugin.
type stages map[string]*lateCaller

func (s stages) Call(c *policy.Call) policy.Status { return s[c.Name].Call(c) }

func (s stages) Room(plugin, namespace string) bool { return s[plugin].Room(plugin, namespace) }

func (s stages) ThrottledSince(string) time.Time { return time.Time{} }

// TestRefusedChainIsPlannedWhenItsTurnComes counts how often Services are planned whose chain is refused by a plugin in its middle.
func TestRefusedChainIsPlannedWhenItsTurnComes(t *testing.T) {
	const services = 60
	settings := testSettings()
	settings.Policies.Policies["zone"] = &policy.Policy{Name: "zone", Steps: []policy.Step{{Plugin: "first"}, {Plugin: "second"}}}
	p := New(settings, func(string) (policy.Plugin, error) { return zonePlugin{}, nil })
	first, second := &lateCaller{limit: services}, &lateCaller{limit: 2, calls: map[model.Name]int{}}
	p.CallThrough(stages{"first": first, "second": second})
	p.PlanInBatches()
	var changes []model.Change
	for i := range services {
		changes = append(changes, portedService(model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 1)...)
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	now, planned := time.Unix(1000, 0), 0
	for range 4 * services {
		planned += p.Plan(now).Planned
		first.answer(p, 10, now)
		second.answer(p, 2, now)
	}
	if planned > 3*services {
		t.Errorf("%d Services planned %d times, want each at the beginning, when its turn comes and with its answer", services, planned)
	}
	if len(second.calls) != services || p.Awaited() != 0 {
		t.Errorf("%d Services answered, %d decisions wait", len(second.calls), p.Awaited())
	}
	for name, n := range second.calls {
		if n != 1 {
			t.Errorf("%s: %d calls", name, n)
		}
	}
}
