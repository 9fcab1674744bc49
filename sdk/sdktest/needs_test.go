package sdktest

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// inputs are the optional inputs that a plugin has received.
type inputs struct {
	nodes       uint32
	cpu         uint64
	index       int
	connections bool
	outcomes    sdk.Outcomes
	window      time.Duration
	pod         string
}

// inputRecorder records the optional inputs that it receives.
type inputRecorder struct {
	needs sdk.Need
	seen  inputs
}

func (c *inputRecorder) Needs() sdk.Need        { return c.needs }
func (c *inputRecorder) Configure([]byte) error { return nil }

func (c *inputRecorder) Decide(req *sdk.Request, _ *sdk.Response) error {
	e := req.Endpoint(0)
	c.seen = inputs{nodes: req.Zone(0).Nodes, cpu: req.Zone(0).MilliCPU, window: time.Duration(req.OutcomesWindow()), outcomes: req.Outcomes(0), pod: req.Text(e.Pod())}
	_, c.seen.connections = e.Connections()
	if i, n, known := req.NodeIndex(); known {
		c.seen.index = 100*i + n
	}
	return nil
}

func TestPluginsGetOnlyTheInputsTheyNeed(t *testing.T) {
	e := Watched(Ready("a"), 3, 2, 1)
	e.Connections = 5
	req := NewRequest("a", map[string]int{"a": 3}, e)
	counts := sdk.Outcomes{Attempts: 6, Answered: 3, Refused: 2, Unanswered: 1}
	for needs, want := range map[sdk.Need]inputs{
		0:                   {},
		sdk.NeedNodes:       {nodes: 3, cpu: 12000, index: 3},
		sdk.NeedConnections: {connections: true},
		sdk.NeedOutcomes:    {outcomes: counts, window: Window * time.Millisecond},
		sdk.NeedPodNames:    {pod: "web-0"},
		abi.AllNeeds:        {nodes: 3, cpu: 12000, index: 3, connections: true, outcomes: counts, window: Window * time.Millisecond, pod: "web-0"},
	} {
		got := &inputRecorder{needs: needs}
		if _, err := Run(got, "", req); err != nil {
			t.Fatal(err)
		}
		if got.seen != want {
			t.Errorf("needs %b: it saw %+v, want %+v", needs, got.seen, want)
		}
	}

	first, second := &inputRecorder{}, &inputRecorder{needs: sdk.NeedNodes}
	if _, err := RunChain(req, native(t, first), native(t, second)); err != nil {
		t.Fatal(err)
	}
	if first.seen.nodes != 0 || second.seen.nodes != 3 {
		t.Errorf("in a chain: %+v and %+v", *first, *second)
	}
}

func native(t *testing.T, p sdk.Plugin) *sdk.NativePlugin {
	t.Helper()
	n, err := sdk.NewNativePlugin(func() sdk.Plugin { return p }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// keyed gives an endpoint the weight 1 to 4 by what it sees of a value, and records the value of the Service.
type keyed struct {
	keys    []string
	service string
}

func (k *keyed) Configure([]byte) error { return nil }
func (k *keyed) Keys() []string         { return k.keys }

func (k *keyed) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		switch id, present := req.PodValue(i, 0); {
		case !present:
			resp.SetShare(i, 1*sdk.One)
		case id == sdk.NoString:
			resp.SetShare(i, 2*sdk.One)
		case req.Text(id) == "canary":
			resp.SetShare(i, 3*sdk.One)
		default:
			resp.SetShare(i, 4*sdk.One)
		}
	}
	id, _ := req.ServiceValue(0)
	k.service = req.Text(id)
	return nil
}

// Each plugin of a chain gets its own keys, in the order in which it declares them.
func TestPluginsGetTheValuesOfTheirKeys(t *testing.T) {
	with := func(values ...abi.Value) abi.Endpoint { e := Ready("a"); e.Values = values; return e }
	canary, stable, empty := abi.Value{Text: "canary", Present: true}, abi.Value{Text: "stable", Present: true}, abi.Value{Present: true}
	req := NewRequest("a", nil, with(canary, stable), with(stable, canary), with(empty, abi.Value{}), with())
	req.Keys = []string{sdk.PodLabel("track"), sdk.ServiceLabel("team"), sdk.PodAnnotation("example.com/stage"), sdk.ServiceAnnotation("owner")}
	req.ServiceValues = Values("payments", "jo")
	first := &keyed{keys: []string{sdk.PodLabel("track"), sdk.ServiceAnnotation("owner")}}
	second := &keyed{keys: []string{sdk.ServiceLabel("team"), sdk.PodAnnotation("example.com/stage"), sdk.PodCPU}}
	all, err := RunChain(req, native(t, first), native(t, second))
	if err != nil {
		t.Fatal(err)
	}
	if got := Answers(all[0]); !slices.Equal(got, []float64{3, 4, 2, 1}) || first.service != "jo" {
		t.Errorf("the first: %v, %q", got, first.service)
	}
	if got := Answers(all[1]); !slices.Equal(got, []float64{4, 3, 1, 1}) || second.service != "payments" {
		t.Errorf("the second: %v, %q", got, second.service)
	}
}

func TestInvalidKeysAreRefused(t *testing.T) {
	for _, keys := range [][]string{{"colour:red"}, {sdk.PodLabel("a"), sdk.PodLabel("a")}, {sdk.PodLabel("-")}, {"label:a\nlabel:b", "label:b"}, make([]string, 17)} {
		if _, err := Run(&keyed{keys: keys}, "", NewRequest("a", nil)); err == nil {
			t.Errorf("%q is accepted", keys)
		}
	}
}
