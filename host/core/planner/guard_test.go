package planner

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// guarded is a planner of Services that a guarded policy applies to by two bindings, one with settings, and by default; without
// it, the policy zone or none applies.
type guarded struct {
	*Planner
	t      *testing.T
	plugin *zonePlugin
	config Settings
	now    time.Time
}

func newGuarded(t *testing.T, services int) *guarded {
	t.Helper()
	g := &guarded{t: t, plugin: &zonePlugin{}, config: testSettings(), now: time.Unix(1000, 0)}
	g.config.Policies = guardedSet()
	g.Planner = g.newPlanner()
	changes := withoutHints(manyServices(services, 2))
	for i := range changes {
		if svc := changes[i].Service; svc != nil {
			svc.Labels = []map[string]string{{"app": "web"}, {"app": "api"}, nil}[i/2%3]
		}
	}
	g.Apply(changes)
	return g
}

func (g *guarded) newPlanner() *Planner {
	p := New(g.config, func(name string) (policy.Plugin, error) {
		switch {
		case g.plugin == nil:
			return nil, policy.ErrPending
		case name == "last":
			return preferring{g.plugin.Plugin}, nil
		}
		return g.plugin, nil
	})
	p.UseSignals(&failures{})
	return p
}

// withoutHints removes the topology hints of endpoints.
func withoutHints(changes []model.Change) []model.Change {
	for i := range changes {
		if s := changes[i].Slice; s != nil {
			for j := range s.Endpoints {
				s.Endpoints[j].Hints = nil
			}
		}
	}
	return changes
}

// preferring is a plugin that gives all connections to the endpoint with the highest address.
type preferring struct{ policytest.Plugin }

func (preferring) Decide(req *abi.Request, resp *abi.Response) error {
	resp.Results[len(resp.Results)-1].Value = abi.One
	return nil
}

func guardedSet() *policy.Set {
	app := func(name string) policy.Selector {
		return policy.Selector{{Key: "app", Op: policy.In, Values: []string{name}}}
	}
	trial := &policy.Policy{Name: "trial", Steps: []policy.Step{{Plugin: "last"}}, Guard: policy.Guard{FailedPercent: 2, Window: 10 * time.Second}}
	api, err := trial.WithSettings(map[string]string{"last": `{"a":1}`})
	if err != nil {
		panic(err)
	}
	return &policy.Set{
		Policies: map[string]*policy.Policy{"trial": trial, "zone": {Name: "zone", Steps: []policy.Step{{Plugin: "by-zone"}}}},
		Bindings: []policy.Binding{{Selector: app("web"), Policy: "trial"}, {Selector: app("api"), Policy: "trial", Applied: api}, {Selector: app("web"), Policy: "zone"}},
		Default:  "trial",
	}
}

// second plans, and a second later takes a reading with a number of connections to an endpoint, of which some failed, and plans
// again.
func (g *guarded) second(connections, failed uint64) (out []GuardChange) {
	g.t.Helper()
	out = append(out, g.PlanNow(g.now).Guards...)
	g.now = g.now.Add(time.Second)
	var changes []outcomes.Change
	if keys := slices.SortedFunc(maps.Keys(g.outcomes.Services()), model.EndpointKey.Compare); len(keys) > 0 {
		changes = append(changes, outcomes.Change{Key: keys[len(keys)-1], Answered: connections - failed, Refused: failed, Failed: failed > 0})
	}
	g.AddOutcomes(g.now, time.Second, changes)
	return append(out, g.PlanNow(g.now).Guards...)
}

// policies returns the policies in force, as a text for each Service.
func (g *guarded) policies() string {
	g.t.Helper()
	var out []string
	for _, name := range g.ServiceNames() {
		e, err := g.Explain(name)
		if err != nil {
			g.t.Fatal(err)
		}
		text := "none"
		if e.Policy != nil {
			text = e.Policy.Name
		}
		if len(e.Guards) != 1 || e.Guards[0].Policy != "trial" {
			g.t.Errorf("%s: guards %+v", name, e.Guards)
		}
		if in, ok := g.services[name].policy.counted.DecidedBy(g.now); !ok || in != strings.TrimSuffix(text, "none") {
			g.t.Errorf("%s: connections are counted for %q, want policy %s", name, in, text)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func (g *guarded) expect(what, want string) {
	g.t.Helper()
	if got := g.policies(); got != want {
		g.t.Fatalf("%s: policies %s, want %s (%s)", what, got, want, g.evaluator.Guards["trial"])
	}
}

// untilChange takes readings until the guard changes, and returns how many, and the change.
func (g *guarded) untilChange(connections, failed uint64) (int, GuardChange) {
	g.t.Helper()
	for n := 1; n <= 100; n++ {
		if c := g.second(connections, failed); len(c) > 0 {
			if len(c) > 1 {
				g.t.Fatalf("%d changes: %+v", len(c), c)
			}
			return n, c[0]
		}
	}
	g.t.Fatalf("the guard does not change: %s", g.evaluator.Guards["trial"])
	return 0, GuardChange{}
}

const without, with = "zone none none zone", "trial trial trial trial"

func TestGuardedPolicyComesIntoForceAndFallsBack(t *testing.T) {
	g := newGuarded(t, 4)
	g.PlanNow(g.now)
	g.expect("at first", without)
	if !g.CountsOutcomes() {
		t.Fatal("outcomes are not counted")
	}
	n, c := g.untilChange(100, 1)
	if n != 13 || c.Phase != policy.GuardInForce { // two seconds do not count, and outcomes count a second later
		t.Fatalf("after %d readings: %+v", n, c)
	}
	g.expect("after the baseline", with)
	for range 30 {
		if c := g.second(100, 2); len(c) > 0 {
			t.Fatalf("a share that is allowed: %+v", c)
		}
	}
	n, c = g.untilChange(100, 90)
	if n < 6 || n > 8 || c.Phase != policy.GuardFallenBack || !strings.Contains(c.Text, "policy trial has fallen back") {
		t.Fatalf("after %d readings: %+v", n, c)
	}
	g.expect("after it has fallen back", without)
	for range 30 {
		g.second(100, 0)
	}
	g.expect("later", without)
	r := g.PlanNow(g.now)
	if want := (tally.GuardTotals{Policy: "trial", Phase: policy.GuardFallenBack}); len(r.Totals.Guards) != 1 || r.Totals.Guards[0] != want {
		t.Errorf("totals %+v", r.Totals.Guards)
	}

	// A restart, with plugins that are loaded late.
	saved, err := g.Save(scriptEpoch)
	if err != nil {
		t.Fatal(err)
	}
	cluster, plugin := g.cluster, g.plugin
	g.plugin, g.Planner = nil, g.newPlanner()
	if _, _, err := g.Restore(saved, scriptEpoch); err != nil {
		t.Fatal(err)
	}
	g.Replace(cluster)
	g.PlanNow(g.now)
	g.expect("after a restart", without)
	g.plugin = plugin
	g.PluginsReloaded()
	g.second(100, 0)
	g.expect("after a restart, with the plugins", without)

	// Another revision of the plugin is tried again.
	g.plugin.Code = "2"
	g.PluginsReloaded()
	g.PlanNow(g.now)
	g.expect("another revision", without)
	g.untilChange(100, 1)
	g.expect("another revision, after the baseline", with)
	g.plugin.Code = "3"
	g.PluginsReloaded()
	g.PlanNow(g.now)
	g.expect("a revision after one that is in force", with)
	if n, c := g.untilChange(100, 90); n > 10 || c.Phase != policy.GuardFallenBack {
		t.Fatalf("it is not compared: %d readings, %+v", n, c)
	}

	// Without the guard it is in force.
	g.config.Policies = guardedSet()
	g.config.Policies.Policies["trial"].Guard = policy.Guard{}
	g.config.Policies.Bindings[1].Applied.Guard = policy.Guard{}
	g.Configure(g.config)
	if r := g.PlanNow(g.now); len(r.Totals.Guards) > 0 || g.CountsOutcomes() {
		t.Errorf("without a guard: %+v, outcomes counted: %t", r.Totals.Guards, g.CountsOutcomes())
	}
	for _, name := range g.ServiceNames() {
		if e, _ := g.Explain(name); e.Policy == nil || e.Policy.Name != "trial" || e.Guards != nil {
			t.Errorf("%s: %+v", name, e.Policy)
		}
	}
}

var scriptEpoch = policy.Epoch{Boot: "boot"}

// TestConnectionsBeforeAChangeOfPolicyDoNotCount: unanswered ones are reported up to 1.5 s after they have begun.
func TestConnectionsBeforeAChangeOfPolicyDoNotCount(t *testing.T) {
	g := newGuarded(t, 4)
	g.untilChange(100, 0)
	g.second(100, 100)
	g.second(100, 100)
	g.second(100, 0)
	if s := g.evaluator.Guards["trial"]; s.Phase != policy.GuardInForce || s.Recent.Connections > 0 {
		t.Fatalf("%+v", s)
	}
	if g.second(100, 0); g.evaluator.Guards["trial"].Recent.Connections != 100 {
		t.Fatalf("%+v", g.evaluator.Guards["trial"])
	}
	// A Service that comes later is under the policy at once.
	name := model.Name{Namespace: "shop", Name: "late"}
	svc := *g.cluster.Services[g.ServiceNames()[0]]
	svc.Name = name
	slice := slice(name, 1)
	g.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: &svc}, {Kind: model.SliceKind, Name: slice.Name, Slice: slice}})
	g.PlanNow(g.now)
	g.expect("a new Service", "trial "+with)
}

// TestGuardComparesAfterARestart: what the policy before has decided last is in the checkpoint.
func TestGuardComparesAfterARestart(t *testing.T) {
	g := newGuarded(t, 1)
	g.untilChange(100, 0)
	g.second(100, 0)
	saved, err := g.Save(scriptEpoch)
	if err != nil {
		t.Fatal(err)
	}
	cluster := g.cluster
	g.Planner = g.newPlanner()
	if _, _, err := g.Restore(saved, scriptEpoch); err != nil {
		t.Fatal(err)
	}
	g.Replace(cluster)
	g.PlanNow(g.now)
	g.expect("after a restart", "trial")
	if n, c := g.untilChange(100, 90); n > 12 || c.Phase != policy.GuardFallenBack {
		t.Errorf("after %d readings: %+v", n, c)
	}
}

// TestBlindGuardChangesNothing: without readings, what is in force stays so, and what is not does not come into force.
func TestBlindGuardChangesNothing(t *testing.T) {
	g := newGuarded(t, 4)
	for _, want := range []string{without, with} {
		blindAt := g.PlanNow(g.now).RequeueAt
		if !blindAt.Equal(g.now.Add(10*time.Second)) && want == without {
			t.Errorf("blind at %s, now is %s", blindAt, g.now)
		}
		for i, c := range []struct {
			after   time.Duration
			changes int
		}{{9 * time.Second, 0}, {2 * time.Second, 1}, {time.Hour, 0}} {
			g.now = g.now.Add(c.after)
			r := g.PlanNow(g.now)
			if len(r.Guards) != c.changes || c.changes > 0 && (!r.Guards[0].Blind || !strings.Contains(r.Guards[0].Text, "blind")) {
				t.Errorf("%s, %d: %+v", want, i, r.Guards)
			}
			if c.changes > 0 && !r.Totals.Guards[0].Blind {
				t.Errorf("totals %+v", r.Totals.Guards)
			}
		}
		g.expect("blind", want)
		g.AddOutcomes(g.now, 0, nil) // the base
		if c := g.second(0, 0); len(c) != 1 || c[0].Blind {
			t.Errorf("it sees again: %+v", c)
		}
		if want == without {
			g.untilChange(100, 0)
		}
	}
}

// TestGuardsConcernServicesOnly: a guarded policy without Services is not reported, and gets no further.
func TestGuardsConcernServicesOnly(t *testing.T) {
	g := newGuarded(t, 4)
	g.PlanNow(g.now)
	for _, name := range g.ServiceNames() {
		g.Apply([]model.Change{{Kind: model.ServiceKind, Name: name}})
	}
	g.PlanNow(g.now)
	g.now = g.now.Add(time.Hour)
	if c := g.second(0, 0); len(c) > 0 || len(g.PlanNow(g.now).Totals.Guards) > 0 || len(g.guards.list[0].services) > 0 {
		t.Errorf("%+v", c)
	}
	if s := g.evaluator.Guards["trial"]; s.Measured > 0 {
		t.Errorf("%+v", s)
	}
}

// TestGuardedPolicyIsPlannedAtOnceWithoutSignals: commands that plan once show what the configuration says.
func TestGuardedPolicyIsPlannedAtOnceWithoutSignals(t *testing.T) {
	p := New(Settings{Node: "n0", MasqueradeMark: 1, Policies: guardedSet()}, nativePlugins)
	p.Apply(manyServices(1, 2))
	if r := p.PlanNow(time.Unix(1000, 0)); len(r.Totals.Guards) > 0 || !r.RequeueAt.IsZero() {
		t.Errorf("%+v", r.Totals.Guards)
	}
	e, err := p.Explain(p.ServiceNames()[0])
	if err != nil || e.Policy == nil || e.Policy.Name != "trial" || e.Guards != nil {
		t.Errorf("%v, %+v", err, e)
	}
}

// TestGuardCostsWhatHasChanged counts allocations of a reading: as many with 10,000 Services as with 100, and none without
// connections.
func TestGuardCostsWhatHasChanged(t *testing.T) {
	cost := func(services int, connections uint64) float64 {
		g := newGuarded(t, services)
		g.untilChange(1000, 0)
		for range 30 {
			g.second(1000, 0)
		}
		one := model.EndpointKey{}
		for key, of := range g.outcomes.Services() {
			if len(of) == 1 || one == (model.EndpointKey{}) {
				one = key
			}
		}
		changes := []outcomes.Change{{Key: one, Answered: connections}}
		if connections == 0 {
			changes = nil
		}
		g.outcomes.Services()[one] = g.outcomes.Services()[one][:1]
		return testing.AllocsPerRun(50, func() {
			g.now = g.now.Add(time.Second)
			g.AddOutcomes(g.now, time.Second, changes)
		})
	}
	small, large, idle := cost(100, 10), cost(3000, 10), cost(3000, 0)
	if small != large || idle > 0 {
		t.Errorf("%v allocations with 100 Services, %v with 3,000, %v without connections", small, large, idle)
	}
}
