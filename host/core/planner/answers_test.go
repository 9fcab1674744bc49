package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// lateCaller keeps a limited number of calls, which answer empties. Other pools have places and ask again, as with
// host/node/agent/dispatch.
type lateCaller struct {
	limit          int
	queued, places []*slot
	calls          map[model.Name]int
}

// slot is what a pool asks a plugin.
type slot struct {
	key    policy.PoolKey
	plugin string
	call   *policy.Call // nil: it is not kept
}

// plan plans, and takes the calls.
func (l *lateCaller) plan(p *Planner, now time.Time) Result {
	for {
		result := p.Plan(now)
		if len(result.Calls) == 0 {
			return result
		}
		for _, c := range result.Calls {
			l.take(c)
		}
		p.Deliver(l.fill(), now)
	}
}

func (l *lateCaller) take(c *policy.Call) {
	same := func(o *slot) bool { return o.key == c.Key && o.plugin == c.Name }
	if c.Plugin == nil {
		l.queued, l.places = slices.DeleteFunc(l.queued, same), slices.DeleteFunc(l.places, same)
		return
	}
	s := &slot{c.Key, c.Name, c}
	switch i := slices.IndexFunc(l.queued, same); {
	case i >= 0:
		l.queued[i].call = c
	case slices.ContainsFunc(l.places, same):
	case len(l.places) == 0 && len(l.queued) < l.limit:
		l.queued = append(l.queued, s)
	default:
		if c.Repeatable() {
			s.call = nil
		}
		l.places = append(l.places, s)
	}
}

// fill returns the answers of calls that there is room for again.
func (l *lateCaller) fill() (again []*policy.Call) {
	for len(l.places) > 0 && len(l.queued) < l.limit {
		s := l.places[0]
		l.queued, l.places = append(l.queued, s), l.places[1:]
		if s.call == nil {
			again = append(again, s.key.Again(s.plugin))
		}
	}
	return again
}

// answer answers up to n calls.
func (l *lateCaller) answer(p *Planner, n int, now time.Time) {
	var done []*policy.Call
	l.queued = slices.DeleteFunc(l.queued, func(s *slot) bool {
		if s.call == nil || len(done) == n {
			return false
		}
		done = append(done, s.call)
		return true
	})
	for _, c := range done {
		c.Do()
		if l.calls != nil {
			l.calls[c.Key.Port.Service]++
		}
	}
	p.Deliver(append(done, l.fill()...), now)
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

// TestLateAnswersOfManyPortsPlanServiceOnce counts how often a Service is planned while its 100 ports are answered one by one.
func TestLateAnswersOfManyPortsPlanServiceOnce(t *testing.T) {
	const ports = 100
	l := &lateCaller{limit: ports}
	p := New(testSettings(), nativePlugins)
	name := model.Name{Namespace: "shop", Name: "web"}
	p.Apply(append(portedService(name, netip.MustParseAddr("10.96.0.1"), ports), model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	l.plan(p, now)
	planned, wake := 0, time.Time{}
	for range ports {
		now = now.Add(5 * time.Millisecond)
		l.answer(p, 1, now)
		step := l.plan(p, now)
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
	planInSteps(p)
	var changes []model.Change
	for i := range 10 {
		changes = append(changes, portedService(model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 1)...)
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	if step := l.plan(p, now); step.Planned != 10 || step.Remaining != 0 || !step.RequeueAt.IsZero() || len(step.Delta.Changes) != 10 {
		t.Fatalf("%d planned, %d frontends, %d remain, again at %v", step.Planned, len(step.Delta.Changes), step.Remaining, step.RequeueAt)
	}
	if p.Awaited() != 10 {
		t.Fatalf("%d decisions wait", p.Awaited())
	}
	planned := 0
	for range 10 {
		l.answer(p, 1, now)
		step := l.plan(p, now)
		planned += step.Planned
	}
	if planned != 10 || p.Awaited() != 0 { // with its answer
		t.Errorf("planned %d Services, %d decisions wait", planned, p.Awaited())
	}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "s0"}}})
	if l.plan(p, now); len(l.queued)+len(l.places) != 0 {
		t.Errorf("%d calls are left", len(l.queued)+len(l.places))
	}
}

// stages is a lateCaller for each plugin.
type stages map[string]*lateCaller

func (s stages) plan(p *Planner, now time.Time) Result {
	for {
		result := p.Plan(now)
		if len(result.Calls) == 0 {
			return result
		}
		for _, c := range result.Calls {
			s[c.Name].take(c)
		}
		for _, l := range s {
			p.Deliver(l.fill(), now)
		}
	}
}

// TestRefusedChainIsPlannedWhenItsTurnComes counts how often Services are planned whose chain is refused by a plugin in its
// middle.
func TestRefusedChainIsPlannedWhenItsTurnComes(t *testing.T) {
	const services = 60
	settings := testSettings()
	settings.Policies.Policies["zone"] = &policy.Policy{Name: "zone", Steps: []policy.Step{{Plugin: "first"}, {Plugin: "second"}}}
	p := New(settings, func(string) (policy.Plugin, error) { return zonePlugin{}, nil })
	first, second := &lateCaller{limit: services}, &lateCaller{limit: 2, calls: map[model.Name]int{}}
	both := stages{"first": first, "second": second}
	planInSteps(p)
	var changes []model.Change
	for i := range services {
		changes = append(changes, portedService(model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 1)...)
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	now, planned := time.Unix(1000, 0), 0
	for range 4 * services {
		planned += both.plan(p, now).Planned
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

// askedPlugin counts how often requests are built: once for each, what the plugin declares is read.
type askedPlugin struct {
	zonePlugin
	built *int
}

func (p askedPlugin) Keys(string) []string { *p.built++; return nil }

// TestPlanGoesOnWithAnswers: a Plan that waits for the plugins of a Service's ports changes nothing, builds each request once
// whatever the number of ports, and plans the Service once, with the answers that are there.
func TestPlanGoesOnWithAnswers(t *testing.T) {
	const ports = 50
	name, now := model.Name{Namespace: "shop", Name: "web"}, time.Unix(1000, 0)
	for answered := range 3 { // none, half, all
		built := 0
		p := New(testSettings(), func(string) (policy.Plugin, error) { return askedPlugin{built: &built}, nil })
		p.Apply(append(portedService(name, netip.MustParseAddr("10.96.0.1"), ports), model.Change{Kind: model.Synced}))
		result := p.Plan(now)
		if len(result.Calls) != ports || !result.Delta.Empty() || len(p.Current().Frontends) != 0 {
			t.Fatalf("%d calls, %d changes before the answers", len(result.Calls), len(result.Delta.Changes))
		}
		first, calls := built, result.Calls
		for _, c := range calls {
			c.Do()
		}
		n := ports * answered / 2
		p.Deliver(calls[:n], now)
		result = p.Plan(now)
		if len(result.Calls) != 0 || result.Planned != 1 || result.Remaining != 0 || len(result.Delta.Changes) != ports || built != first || p.Awaited() != ports-n {
			t.Fatalf("%d answers: planned %d, %d remain, %d changes, %d more requests, %d wait", n, result.Planned, result.Remaining, len(result.Delta.Changes),
				built-first, p.Awaited())
		}
		p.Deliver(calls[n:], now)
		for p.Plan(now).Remaining > 0 {
		}
		if x, _ := p.Explain(name); p.Awaited() != 0 || x.Err != nil || len(x.Decisions) != ports {
			t.Errorf("%d decisions wait, %v", p.Awaited(), x.Err)
		}
	}
}

// TestCallsOfAPlanAreBounded: the first Plan asks for all Services, with as many requests in memory as at most some hundreds
// take.
func TestCallsOfAPlanAreBounded(t *testing.T) {
	const services = 2000
	p := New(testSettings(), nativePlugins)
	var changes []model.Change
	for i := range services {
		changes = append(changes, portedService(model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 1)...)
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	now, most, all := time.Unix(1000, 0), 0, 0
	result := p.Plan(now)
	for ; len(result.Calls) > 0; result = p.Plan(now) {
		most, all = max(most, len(result.Calls)), all+len(result.Calls)
		for _, c := range result.Calls {
			c.Do()
		}
		p.Deliver(result.Calls, now)
	}
	if most > 300 || all != services || result.Planned != services || len(result.Delta.Changes) != services || result.Remaining != 0 {
		t.Errorf("%d calls, %d at once, %d planned, %d changes, %d remain", all, most, result.Planned, len(result.Delta.Changes), result.Remaining)
	}
}

// TestAnswerOfAnEarlierPlanIsNotLostInAPause: it comes while the Service's round waits for another port.
func TestAnswerOfAnEarlierPlanIsNotLostInAPause(t *testing.T) {
	name, now := model.Name{Namespace: "shop", Name: "web"}, time.Unix(1000, 0)
	p := New(testSettings(), nativePlugins)
	changes := portedService(name, netip.MustParseAddr("10.96.0.1"), 1)
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	late := p.Plan(now).Calls
	p.Plan(now)
	p.Apply(portedService(name, netip.MustParseAddr("10.96.0.1"), 2))
	next := p.Plan(now).Calls
	if len(late) != 1 || len(next) != 1 {
		t.Fatalf("%d and %d calls", len(late), len(next))
	}
	for _, c := range append(late, next...) {
		c.Do()
		p.Deliver([]*policy.Call{c}, now)
	}
	for n := 0; p.Plan(now).Remaining > 0; n++ {
		if n == 10 {
			t.Fatal("no end")
		}
	}
	if x, _ := p.Explain(name); p.Awaited() != 0 || x.Decisions[0].Cluster.Pending != nil {
		t.Errorf("%d decisions wait, %+v", p.Awaited(), x.Decisions[0].Cluster.Pending)
	}
}
