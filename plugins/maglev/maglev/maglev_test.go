package maglev

import (
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/capacity/capacity"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// request returns a request with endpoints of these capacities.
func request(list ...uint32) *abi.Request {
	req := sdktest.NewRequest("a", nil, sdktest.Repeat(len(list), sdktest.Ready("a"))...)
	for i, c := range list {
		req.Endpoints[i].Capacity = c
	}
	return req
}

func TestEndpointsAreChosenByClientAddress(t *testing.T) {
	req := request(abi.One, 0, 300_000, abi.One)
	req.Endpoints[2].Share, req.Endpoints[3].Share = 7, 0
	resp := sdktest.MustRun(t, New(), "", req)
	for i, want := range []string{"by client address", "", "by client address", ""} {
		if r := resp.Results[i]; r.Reason != want || r.Value != req.Endpoints[i].Share {
			t.Errorf("endpoint %d: share %d, %q", i, r.Value, r.Reason)
		}
	}
	if resp.Balance != abi.BalanceSourceHash || resp.RequeueAfter != 0 || len(resp.State) > 0 {
		t.Errorf("balance %d, again after %v, %d bytes of state", resp.Balance, resp.RequeueAfter, len(resp.State))
	}
}

// The decision is the same on every node: nothing in it depends on the node, the zone or the time.
func TestEveryNodeDecidesTheSame(t *testing.T) {
	here := request(3, 1, 4)
	there := request(3, 1, 4)
	there.Node, there.Zone, there.NodeIndex, there.Now, there.Generation, there.State = "other", "b", 7, sdktest.Now+60_000, 99, []byte{1, 2, 3}
	there.Endpoints[1].Conditions |= abi.Local
	a, b := sdktest.MustRun(t, New(), "", here), sdktest.MustRun(t, New(), "", there)
	if !slices.Equal(sdktest.Answers(a), sdktest.Answers(b)) || a.Balance != b.Balance {
		t.Errorf("%v and %v", sdktest.Answers(a), sdktest.Answers(b))
	}
}

// Endpoints get clients in proportion to what their Pods declare.
func TestCapacityAndMaglevCompose(t *testing.T) {
	first := sdktest.Native(t, capacity.New, `{"from":"label:size"}`)
	second := sdktest.Native(t, New, "")
	req := request(abi.One, abi.One, abi.One)
	req.Keys = []string{sdk.PodLabel("size")}
	for i, size := range []string{"30", "10", "20"} {
		req.Endpoints[i].Values = sdktest.Values(size)
	}
	parts, err := sdktest.Parts(req, first, second)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]uint16, 3)
	abi.Weights(got, parts)
	if !slices.Equal(got, []uint16{3, 1, 2}) {
		t.Errorf("weights %v", got)
	}
}

func TestSettingsAreRefused(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{`{"maxTotal":100}`: `unknown field "maxTotal"`})
	if err := New().Configure([]byte("{}")); err != nil {
		t.Error(err)
	}
}
