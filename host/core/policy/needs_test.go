package policy

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// needsPlugin is a plugin with needs and keys. It records the request that it sees.
type needsPlugin struct {
	fakePlugin
	needs   uint32
	with    map[string]uint32 // needs by settings, nil: the same with all
	keys    []string
	seen    []abi.Zone
	request abi.Request
}

func (n *needsPlugin) Needs(settings string) uint32 {
	if n.with != nil {
		return n.with[settings]
	}
	return n.needs
}

func (n *needsPlugin) Keys(string) []string { return n.keys }

func (n *needsPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	n.seen, n.request = slices.Clone(req.Zones), *req
	n.request.Keys, n.request.Endpoints = slices.Clone(req.Keys), slices.Clone(req.Endpoints)
	return n.fakePlugin.Decide(req, resp)
}

func newNeedy(needs uint32) *needsPlugin {
	return &needsPlugin{fakePlugin: fakePlugin{decide: favorFirst(7)}, needs: needs}
}

// newNeedyFixture is a chain of such plugins on a node of zone a, with endpoints in the zones a and b, and Nodes in a and c.
func newNeedyFixture(plugins ...*needsPlugin) *fixture {
	b := newFixture()
	for i, p := range plugins {
		name := string(rune('p' + i))
		b.plugins[name] = p
		b.policy.Steps = append(b.policy.Steps, Step{Plugin: name})
	}
	b.in.Zone = "a"
	b.in.Zones = []abi.Zone{{Name: "a", Nodes: 2, MilliCPU: 4000}, {Name: "c", Nodes: 1, MilliCPU: 2000}}
	b.in.Port.Endpoints[0].Zone, b.in.Port.Endpoints[1].Zone, b.in.Port.Endpoints[2].Zone = "a", "b", "b"
	return b
}

func TestOnlyChainsThatNeedNodesGetThem(t *testing.T) {
	without := []abi.Zone{{Name: "a", Ready: 1, Serving: 1, Total: 1}, {Name: "b", Ready: 2, Serving: 2, Total: 2}}
	with := []abi.Zone{
		{Name: "a", Nodes: 2, Ready: 1, Serving: 1, Total: 1, MilliCPU: 4000}, {Name: "b", Ready: 2, Serving: 2, Total: 2},
		{Name: "c", Nodes: 1, MilliCPU: 2000},
	}
	for name, c := range map[string]struct {
		needs []uint32
		want  []abi.Zone
	}{
		"no plugin needs them":      {[]uint32{0, abi.NeedConnections}, without},
		"the only one":              {[]uint32{abi.NeedNodes}, with},
		"one of a chain, for all":   {[]uint32{0, abi.NeedNodes}, with},
		"with an unavailable input": {[]uint32{abi.NeedNodes | abi.NeedOutcomes}, with},
		"the first of a chain only": {[]uint32{abi.NeedNodes, 0}, with},
	} {
		t.Run(name, func(t *testing.T) {
			var plugins []*needsPlugin
			for _, n := range c.needs {
				plugins = append(plugins, newNeedy(n))
			}
			b := newNeedyFixture(plugins...)
			b.expect(t, "first call", FromChain, 7, 1, 1)
			for i, p := range plugins {
				if !slices.Equal(p.seen, c.want) {
					t.Errorf("plugin %d saw %+v, want %+v", i, p.seen, c.want)
				}
			}
			if c.want[0].Nodes > 0 {
				return
			}
			calls := plugins[0].calls
			b.in.Zones = []abi.Zone{{Name: "c", Nodes: 5}}
			b.expect(t, "Nodes change", FromChain, 7, 1, 1)
			if plugins[0].calls != calls {
				t.Error("called again for a change of Nodes, which it does not need")
			}
		})
	}
}

// With settings of its own, a Service has the inputs that the settings of its policy ask for.
func TestNeedsDependOnTheSettingsOfThePolicy(t *testing.T) {
	const plain, zoned = `{"by":"plain"}`, `{"by":"zone"}`
	for settings, want := range map[string]uint32{plain: 0, zoned: 2} {
		for _, own := range []bool{false, true} {
			p := newNeedy(0)
			p.with = map[string]uint32{zoned: abi.NeedNodes}
			b := newNeedyFixture(p)
			step := &b.policy.Steps[0]
			step.Settings = settings
			if own {
				step.Own, step.PolicySettings, step.Settings = true, settings, `{"by":"other"}`
			}
			b.expect(t, "first call", FromChain, 7, 1, 1)
			if p.seen[0].Nodes != want {
				t.Errorf("%s, own settings %v: it saw %d Nodes, want %d", settings, own, p.seen[0].Nodes, want)
			}
			if needs, _ := b.evaluator.Needs(b.policy); (needs&abi.NeedNodes != 0) != (want != 0) {
				t.Errorf("%s: the policy needs %b", settings, needs)
			}
		}
	}
}

func TestPluginThatNeedsNodesWaitsForThem(t *testing.T) {
	p, other := newNeedy(abi.NeedNodes), newNeedy(0)
	b, without := newNeedyFixture(p), newNeedyFixture(other)
	b.in.NodesUnknown, without.in.NodesUnknown = true, true
	without.expect(t, "does not need them", FromChain, 7, 1, 1)
	d := b.expect(t, "before anything is known", FromDefault, 1, 1, 1)
	if !errors.Is(d.Err, ErrPending) || p.calls != 0 {
		t.Errorf("%v after %d calls", d.Err, p.calls)
	}
	b.in.NodesUnknown = false
	b.expect(t, "known", FromChain, 7, 1, 1)
	b.in.NodesUnknown = true
	b.in.Zones = nil
	b.policy.OnFailure = Default // waiting is not a failure
	b.expect(t, "no longer known: the last good decision", FromLastGood, 7, 1, 1)
	b.in.NodesUnknown = false
	b.expect(t, "known again", FromChain, 7, 1, 1)
	if p.calls != 2 {
		t.Errorf("%d calls", p.calls)
	}
}

func TestRequestHasAllEndpointsWithWhatIsKnownOfThem(t *testing.T) {
	p := newNeedy(abi.NeedPodNames)
	b := newNeedyFixture(p)
	b.set(2, 1)
	eps := b.in.Port.Endpoints
	eps[0].Pod, eps[0].Zone = "web-0", "a"
	eps[1].Pod, eps[1].Zone, eps[1].Ready, eps[1].InCluster = "web-1", "a", false, false // serving, but not ready
	eps[2].Pod, eps[2].Zone, eps[2].Serving = "web-2", "b", false
	b.expect(t, "one of three is eligible", FromChain, 1, 0, 0)
	var got []abi.Endpoint
	for _, e := range p.request.Endpoints {
		got = append(got, abi.Endpoint{Pod: e.Pod, Conditions: e.Conditions})
	}
	want := []abi.Endpoint{
		{Pod: "web-0", Conditions: abi.Ready | abi.Serving | abi.Chosen | abi.Eligible},
		{Pod: "web-1", Conditions: abi.Serving}, {Pod: "web-2", Conditions: abi.Terminating},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("endpoints %+v, want %+v", got, want)
	}
	zones := []abi.Zone{{Name: "a", Ready: 1, Serving: 2, Total: 2}, {Name: "b", Total: 1}}
	if !slices.Equal(p.seen, zones) {
		t.Errorf("zones %+v, want %+v", p.seen, zones)
	}
	if r := &p.request; r.NodeIndex != abi.NoIndex || r.NodeCount != 0 || r.ConnectionsAgeMS != abi.NoAge || r.OutcomesWindowMS != 0 {
		t.Errorf("what is not known: %+v", r)
	}
}

func TestPodNamesAreGivenOnRequestOnly(t *testing.T) {
	p := newNeedy(0)
	b := newNeedyFixture(p)
	b.in.Port.Endpoints[0].Pod = "web-0"
	b.expect(t, "first call", FromChain, 7, 1, 1)
	b.in.Port.Endpoints[0].Pod = "web-1"
	b.expect(t, "another Pod with the address", FromChain, 7, 1, 1)
	if p.calls != 1 || p.request.Endpoints[0].Pod != "" {
		t.Errorf("%d calls, the first Pod is %q", p.calls, p.request.Endpoints[0].Pod)
	}
}

func TestRequestHasTheKeysOfAllPluginsOfTheChain(t *testing.T) {
	p, q := newNeedy(0), newNeedy(0)
	p.keys, q.keys = []string{"label:a", "service-label:b"}, []string{"label:c", "label:a"}
	b := newNeedyFixture(p, q)
	b.expect(t, "first call", FromChain, 7, 1, 1)
	want := []string{"label:a", "service-label:b", "label:c"}
	if !slices.Equal(p.request.Keys, want) || !slices.Equal(q.request.Keys, want) {
		t.Errorf("keys %v and %v, want %v", p.request.Keys, q.request.Keys, want)
	}
}
