package planner

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// needyPlugin is zonePlugin that counts calls.
type needyPlugin struct {
	zonePlugin
	calls int
}

func needy(needs uint32) *needyPlugin {
	return &needyPlugin{zonePlugin: zonePlugin{policytest.Plugin{Inputs: needs}}}
}

func (n *needyPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	n.calls++
	return n.zonePlugin.Decide(req, resp)
}

// failures says that all endpoints have failed in a reading.
type failures struct{ reading uint64 }

func (f *failures) OutcomesWindow(time.Time) (uint64, time.Duration) { return f.reading, time.Second }
func (f *failures) Outcomes(model.EndpointKey) (abi.Outcomes, uint64) {
	return abi.Outcomes{}, f.reading
}
func (f *failures) ConnectionsAge(time.Time) (time.Duration, bool) { return 0, false }
func (f *failures) Connections(model.EndpointKey) (uint32, bool)   { return 0, false }

// countedPlanner plans the Service zoned, with a policy, and plain, without one, that share an endpoint.
func countedPlanner(plugin *needyPlugin, change func(*Settings)) *Planner {
	settings := testSettings()
	settings.OutcomeNeeds = abi.NeedOutcomes
	if change != nil {
		change(&settings)
	}
	p := New(settings, func(string) (policy.Plugin, error) { return plugin, nil })
	p.Apply([]model.Change{{Kind: model.Synced}})
	for i, name := range []string{"zoned", "plain"} {
		n := model.Name{Namespace: "shop", Name: name}
		svc := &model.Service{Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}
		if name == "zoned" {
			svc.Labels = map[string]string{"zoned": ""}
		}
		s := &model.EndpointSlice{Name: n, Service: n, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
		for j := range 2 {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: countedKey(i + j).Addr.Addr(), Ready: true, Serving: true})
		}
		p.Apply([]model.Change{{Kind: model.ServiceKind, Name: n, Service: svc}, {Kind: model.SliceKind, Name: n, Slice: s}})
	}
	return p
}

// countedKey returns endpoint 0 (of zoned), 1 (of both) or 2 (of plain).
func countedKey(i int) model.EndpointKey {
	return model.EndpointKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 7, byte(i)}), 8080), Protocol: model.TCP}
}

func countingServices(p *plan.Plan) (out []string) {
	for _, k := range p.Keys() {
		if f := p.Frontends[k]; f.Outcomes {
			out = append(out, f.Owner.Service.Name)
		}
	}
	return out
}

func TestOutcomesAreCountedOnlyWhereTheyAreNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		needs  uint32
		change func(*Settings)
		want   []string
	}{
		"nothing needs them":           {abi.NeedNodes, nil, nil},
		"a plugin does":                {abi.NeedOutcomes, nil, []string{"zoned"}},
		"also in a shadow":             {abi.NeedOutcomes, func(s *Settings) { q := s.Policies.Policies["zone"]; q.Steps, q.Shadow = nil, q.Steps }, []string{"zoned"}},
		"open connections need none":   {abi.NeedConnections, nil, nil},
		"open connections need them":   {abi.NeedConnections, func(s *Settings) { s.OutcomeNeeds |= abi.NeedConnections }, []string{"zoned"}},
		"metrics of all Services":      {0, func(s *Settings) { s.CountAll = true }, []string{"zoned", "plain"}},
		"metrics, and a plugin's need": {abi.NeedOutcomes, func(s *Settings) { s.CountAll = true }, []string{"zoned", "plain"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := countedPlanner(needy(c.needs), c.change)
			p.PlanNow(time.Unix(1000, 0))
			if got := countingServices(p.Current()); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if p.CountsOutcomes() != (c.want != nil) {
				t.Error("CountsOutcomes:", p.CountsOutcomes())
			}
		})
	}
}

// TestRoutesCountForTheirBackends: connections that come through a parent are counted if the policy of a backend needs that.
func TestRoutesCountForTheirBackends(t *testing.T) {
	plugin := needy(abi.NeedOutcomes | abi.NeedConnections)
	p := countedPlanner(plugin, nil)
	route := split(1, 0)
	route.Route.Parents, route.Route.Backends[0].Service, route.Route.Backends[1].Service = []model.RouteParent{{Service: "plain"}}, "zoned", "plain"
	p.Apply([]model.Change{route})
	check := func(outcomes []string, frontends int) {
		t.Helper()
		p.PlanNow(time.Unix(1000, 0))
		if got := countingServices(p.Current()); !slices.Equal(got, outcomes) {
			t.Errorf("outcomes of %v are counted, want %v", got, outcomes)
		}
		if got := p.FrontendsToCount(); len(got) != frontends {
			t.Errorf("the connections of %v are counted, want %d", got, frontends)
		}
	}
	check([]string{"zoned", "plain"}, 2)
	plugin.Inputs = 0
	p.PluginsReloaded()
	check(nil, 0)
	plugin.Inputs = abi.NeedOutcomes
	p.PluginsReloaded()
	check([]string{"zoned", "plain"}, 0)
	route.Route = nil
	p.Apply([]model.Change{route})
	check([]string{"zoned"}, 0)
}

// TestParentsThatAreBackendsAreCounted: the endpoints of a Service whose own port has a route are counted for its policy, if
// another Service is split over it.
func TestParentsThatAreBackendsAreCounted(t *testing.T) {
	p := countedPlanner(needy(abi.NeedOutcomes), nil)
	for parent, backend := range map[string]string{"plain": "zoned", "zoned": "plain"} {
		route := split(1)
		route.Name.Name = parent
		route.Route.Name.Name.Name, route.Route.Parents, route.Route.Backends[0].Service = parent, []model.RouteParent{{Service: parent}}, backend
		p.Apply([]model.Change{route})
	}
	p.PlanNow(time.Unix(1000, 0))
	zoned := model.Name{Namespace: "shop", Name: "zoned"}
	if got := p.outcomes.Services()[countedKey(0)]; !slices.Contains(got, zoned) {
		t.Errorf("endpoint 0 counts for %v", got)
	}
}

func TestCountingEndsWithTheNeed(t *testing.T) {
	plugin := needy(abi.NeedOutcomes | abi.NeedConnections)
	p := countedPlanner(plugin, nil)
	p.PlanNow(time.Unix(1000, 0))
	if !p.CountsOutcomes() || !p.NeedsConnections() {
		t.Fatal("nothing is counted")
	}
	plugin.Inputs = 0
	p.PluginsReloaded()
	p.PlanNow(time.Unix(1001, 0))
	if p.CountsOutcomes() || p.NeedsConnections() || len(p.outcomes.Services()) != 0 || countingServices(p.Current()) != nil {
		t.Errorf("still counted: %+v", p.outcomes)
	}
}

func TestDeletedServiceIsNotCounted(t *testing.T) {
	p := countedPlanner(needy(abi.NeedOutcomes|abi.NeedConnections), nil)
	p.PlanNow(time.Unix(1000, 0))
	name := model.Name{Namespace: "shop", Name: "zoned"}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name}})
	r := p.PlanNow(time.Unix(1001, 0))
	if p.CountsOutcomes() || p.NeedsConnections() || len(p.outcomes.Services()) != 0 {
		t.Errorf("still counted: %+v", p.outcomes)
	}
	if want := []tally.ServiceConnections{{Service: name, Gone: true}}; !slices.Equal(r.Connections, want) {
		t.Errorf("got %+v, want %+v", r.Connections, want)
	}
}

func TestTotalsOfServices(t *testing.T) {
	p := countedPlanner(&needyPlugin{}, func(s *Settings) { s.CountAll = true })
	zoned, plain := model.Name{Namespace: "shop", Name: "zoned"}, model.Name{Namespace: "shop", Name: "plain"}
	totals := map[model.Name]tally.Connections{}
	add := func(changes ...outcomes.Change) int {
		p.AddOutcomes(time.Unix(1000, 0), time.Second, changes)
		r := p.PlanNow(time.Unix(1000, 0))
		for _, c := range r.Connections {
			totals[c.Service] = c.Connections
		}
		return len(r.Connections)
	}
	add()
	if want := (map[model.Name]tally.Connections{zoned: {}, plain: {}}); !maps.Equal(totals, want) {
		t.Fatalf("at first: %v", totals)
	}
	add(outcomes.Change{Key: countedKey(0), Answered: 5, Refused: 1}, outcomes.Change{Key: countedKey(1), Answered: 10}, outcomes.Change{Key: countedKey(9), Answered: 99})
	if n := add(outcomes.Change{Key: countedKey(2), Unanswered: 3}); n != 1 {
		t.Errorf("%d Services reported for a change of one", n)
	}
	if want := (map[model.Name]tally.Connections{zoned: {Answered: 15, Refused: 1}, plain: {Answered: 10, Unanswered: 3}}); !maps.Equal(totals, want) {
		t.Errorf("got %v, want %v", totals, want)
	}
	if n := add(); n != 0 {
		t.Errorf("%d Services reported without a change", n)
	}
}

func TestOnlyNewFailuresPlanAServiceAgain(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		testOnlyNewFailures(t, shadow)
	}
}

func testOnlyNewFailures(t *testing.T, shadow bool) {
	plugin := needy(abi.NeedOutcomes)
	p := countedPlanner(plugin, func(s *Settings) {
		s.CountAll = true
		if q := s.Policies.Policies["zone"]; shadow {
			q.Steps, q.Shadow = nil, q.Steps
		}
	})
	signals := &failures{reading: 1}
	p.UseSignals(signals)
	p.PlanNow(time.Unix(1000, 0))
	for _, c := range []struct {
		what    string
		change  outcomes.Change
		planned int
		called  int
	}{
		{"answers", outcomes.Change{Key: countedKey(0), Answered: 5}, 0, 0},
		{"a failure", outcomes.Change{Key: countedKey(0), Refused: 5, Failed: true}, 1, 1},
		{"a failure of a shared endpoint", outcomes.Change{Key: countedKey(1), Refused: 5, Failed: true}, 1, 1},
		{"a failure without a policy", outcomes.Change{Key: countedKey(2), Refused: 5, Failed: true}, 0, 0},
	} {
		calls := plugin.calls
		signals.reading++
		p.AddOutcomes(time.Unix(1000, 0), time.Second, []outcomes.Change{c.change})
		if shadow && p.queue.Waiting(queue.Due) > 0 {
			t.Errorf("%s: the Service is due although only the shadow needs outcomes", c.what)
		}
		if r := p.PlanNow(time.Unix(1001, 0)); r.Planned != c.planned || plugin.calls-calls != c.called {
			t.Errorf("%s: %d planned, %d calls, want %d and %d", c.what, r.Planned, plugin.calls-calls, c.planned, c.called)
		}
	}
}

func TestConnectionsToCount(t *testing.T) {
	p := countedPlanner(needy(abi.NeedConnections), nil)
	p.PlanNow(time.Unix(1000, 0))
	endpoints, frontends := p.ConnectionsToCount(), p.FrontendsToCount()
	if len(endpoints) != 1 || !slices.Equal(endpoints[0], []model.EndpointKey{countedKey(0), countedKey(1)}) {
		t.Errorf("got %v", endpoints)
	}
	if want := []plan.Key{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, 1}), Port: 80, Protocol: model.TCP}}; !slices.Equal(frontends, want) {
		t.Errorf("got %v, want %v", frontends, want)
	}
}
