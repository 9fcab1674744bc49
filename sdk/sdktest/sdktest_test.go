package sdktest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// double doubles weights, and fails when its settings say so.
type double struct {
	fail bool
}

func (d *double) Configure(s []byte) error {
	return sdk.ParseSettings(s, func(f *sdk.Fields) { f.Bool("fail", &d.fail) })
}

func (d *double) Decide(req *sdk.Request, resp *sdk.Response) error {
	if d.fail {
		return errors.New("failed on request")
	}
	for i := range req.NumEndpoints() {
		resp.SetShare(i, 2*req.Endpoint(i).Share())
	}
	return nil
}

func TestRunGoesThroughTheWireForm(t *testing.T) {
	req := NewRequest("a", nil, Ready("a"), Unchosen("b"), Terminating("b", Now-5000))
	resp, err := Run(&double{}, "", req)
	if err != nil {
		t.Fatal(err)
	}
	if got := Answers(resp); !slices.Equal(got, []float64{2, 0, 2}) {
		t.Errorf("weights %v", got)
	}
	if _, err := Run(&double{}, `{"fail":true}`, req); err == nil || !strings.Contains(err.Error(), "failed on request") {
		t.Errorf("a plugin that fails: %v", err)
	}
	if _, err := Run(&double{}, `{"fails":true}`, req); err == nil || !strings.Contains(err.Error(), `"fails"`) {
		t.Errorf("wrong settings: %v", err)
	}
}

func TestRunChainPassesWeightsOn(t *testing.T) {
	p, err := sdk.NewNativePlugin(func() sdk.Plugin { return &double{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	req := NewRequest("a", nil, Repeat(2, Ready("a"))...)
	all, err := RunChain(req, p, p, p)
	if err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
	if got := Answers(all[2]); !slices.Equal(got, []float64{8, 8}) || req.Endpoints[0].Share != abi.One {
		t.Errorf("weights %v; the request has %d", got, req.Endpoints[0].Share)
	}
}

func TestNewRequestFillsZonesAndAddresses(t *testing.T) {
	req := NewRequest("a", map[string]int{"c": 2}, append(Repeat(2, Ready("a")), Terminating("b", Now))...)
	want := []abi.Zone{{Name: "a", Ready: 2, Serving: 2, Total: 2}, {Name: "b", Serving: 1, Total: 1}, {Name: "c", Nodes: 2, MilliCPU: 8000}}
	// A zone that only a terminating endpoint names is in the table too.
	if !slices.Equal(req.Zones, want) {
		t.Errorf("zones %+v, want %+v", req.Zones, want)
	}
	if req.Endpoints[0].Pod != "web-0" || req.NodeIndex != 0 || req.NodeCount != 2 {
		t.Errorf("Pod %q, node %d of %d", req.Endpoints[0].Pod, req.NodeIndex, req.NodeCount)
	}
	if req.Endpoints[0].Addr.String() != "10.0.0.1:8080" || req.Endpoints[2].Addr.String() != "10.0.0.3:8080" {
		t.Errorf("addresses %v", req.Endpoints)
	}
}

// favorLocal sets the weight of local endpoints to 7, and fails if their node is not the node of the request.
type favorLocal struct{}

func (favorLocal) Configure([]byte) error { return nil }

func (favorLocal) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if e.Local() {
			resp.SetShare(i, 7*sdk.One)
		}
		if e.Local() != (e.Node() == req.Node()) {
			return errors.New("local, and on another node")
		}
	}
	return nil
}

func TestLocalEndpointIsOnTheNodeOfTheRequest(t *testing.T) {
	resp, err := Run(favorLocal{}, "", NewRequest("a", nil, Ready("a"), Local("a"), Unchosen("b"), Terminating("b", Now)))
	if err != nil {
		t.Fatal(err)
	}
	if got := Answers(resp); !slices.Equal(got, []float64{1, 7, 0, 1}) {
		t.Errorf("weights %v", got)
	}
}
