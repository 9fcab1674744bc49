package sdktest

import (
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
)

// inputRecorder records the Nodes, connections and metadata that it receives.
type inputRecorder struct {
	needs       sdk.Need
	nodes       uint32
	cpu         uint64
	connections bool
	metadata    string
}

func (c *inputRecorder) Needs() sdk.Need        { return c.needs }
func (c *inputRecorder) Configure([]byte) error { return nil }

func (c *inputRecorder) Decide(req *sdk.Request, _ *sdk.Response) error {
	c.nodes, c.cpu = req.Zone(0).Nodes, req.Zone(0).MilliCPU
	_, c.connections = req.Endpoint(0).Connections()
	c.metadata = req.Text(req.Endpoint(0).Metadata())
	return nil
}

func TestPluginsGetOnlyTheInputsTheyNeed(t *testing.T) {
	e := Ready("a")
	e.Connections, e.Metadata = 5, "app=web"
	req := NewRequest("a", map[string]int{"a": 3}, e)
	for needs, want := range map[sdk.Need]inputRecorder{
		0:                   {},
		sdk.NeedNodes:       {nodes: 3, cpu: 12000},
		sdk.NeedConnections: {connections: true},
		sdk.NeedMetadata:    {metadata: "app=web"},
		sdk.NeedNodes | sdk.NeedConnections | sdk.NeedMetadata: {nodes: 3, cpu: 12000, connections: true, metadata: "app=web"},
	} {
		got := &inputRecorder{needs: needs}
		if _, err := Run(got, "", req); err != nil {
			t.Fatal(err)
		}
		if want.needs = needs; *got != want {
			t.Errorf("needs %b: it saw %+v, want %+v", needs, *got, want)
		}
	}
	if req.Zones[0].Nodes != 3 || req.Endpoints[0].Connections != 5 {
		t.Error("the request itself has changed")
	}

	first, second := &inputRecorder{}, &inputRecorder{needs: sdk.NeedNodes}
	native := func(p sdk.Plugin) *sdk.NativePlugin {
		n, err := sdk.NewNativePlugin(func() sdk.Plugin { return p }, nil)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := RunChain(req, native(first), native(second)); err != nil {
		t.Fatal(err)
	}
	if first.nodes != 3 || second.nodes != 3 || first.connections {
		t.Errorf("in a chain: %+v and %+v", *first, *second)
	}
}
