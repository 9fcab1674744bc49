package policy

import (
	"errors"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// needsPlugin is a plugin with needs. It records the zone table that it sees.
type needsPlugin struct {
	fakePlugin
	needs uint32
	seen  []abi.Zone
}

func (n *needsPlugin) Needs() uint32 { return n.needs }

func (n *needsPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	n.seen = slices.Clone(req.Zones)
	return n.fakePlugin.Decide(req, resp)
}

func newNeedy(needs uint32) *needsPlugin {
	return &needsPlugin{fakePlugin: fakePlugin{decide: setWeights(7)}, needs: needs}
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
	without := []abi.Zone{{Name: "a", Ready: 1}, {Name: "b", Ready: 2}}
	with := []abi.Zone{{Name: "a", Nodes: 2, Ready: 1, MilliCPU: 4000}, {Name: "b", Ready: 2}, {Name: "c", Nodes: 1, MilliCPU: 2000}}
	for name, c := range map[string]struct {
		needs []uint32
		want  []abi.Zone
	}{
		"no plugin needs them":      {[]uint32{0, abi.NeedConnections}, without},
		"the only one":              {[]uint32{abi.NeedNodes}, with},
		"one of a chain, for all":   {[]uint32{0, abi.NeedNodes}, with},
		"with an unavailable input": {[]uint32{abi.NeedNodes | abi.NeedMetadata}, with},
		"the first of a chain only": {[]uint32{abi.NeedNodes, 0}, with},
	} {
		t.Run(name, func(t *testing.T) {
			var plugins []*needsPlugin
			for _, n := range c.needs {
				plugins = append(plugins, newNeedy(n))
			}
			b := newNeedyFixture(plugins...)
			b.expect(t, "first call", FromChain, 7, 7, 7)
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
			b.expect(t, "Nodes change", FromChain, 7, 7, 7)
			if plugins[0].calls != calls {
				t.Error("called again for a change of Nodes, which it does not need")
			}
		})
	}
}

func TestPluginThatNeedsNodesWaitsForThem(t *testing.T) {
	p, other := newNeedy(abi.NeedNodes), newNeedy(0)
	b, without := newNeedyFixture(p), newNeedyFixture(other)
	b.in.NodesUnknown, without.in.NodesUnknown = true, true
	without.expect(t, "does not need them", FromChain, 7, 7, 7)
	d := b.expect(t, "before anything is known", FromDefault, 1, 1, 1)
	if !errors.Is(d.Err, ErrPending) || p.calls != 0 {
		t.Errorf("%v after %d calls", d.Err, p.calls)
	}
	b.in.NodesUnknown = false
	b.expect(t, "known", FromChain, 7, 7, 7)
	b.in.NodesUnknown = true
	b.in.Zones = nil
	b.policy.OnFailure = Default // waiting is not a failure
	b.expect(t, "no longer known: the last good decision", FromLastGood, 7, 7, 7)
	b.in.NodesUnknown = false
	b.expect(t, "known again", FromChain, 7, 7, 7)
	if p.calls != 2 {
		t.Errorf("%d calls", p.calls)
	}
}
