package maglev

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/capacity/capacity"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// request returns a request with endpoints of these weights.
func request(list ...int) *abi.Request {
	var eps []abi.Endpoint
	for _, w := range list {
		e := sdktest.Ready("a")
		if e.Weight = uint32(w); w == 0 {
			e = sdktest.Unchosen("a")
		}
		eps = append(eps, e)
	}
	return sdktest.NewRequest("a", nil, eps...)
}

func TestEndpointsAreChosenByClientAddress(t *testing.T) {
	for _, tt := range []struct {
		weights, want []int
		reason        string // of the first endpoint
	}{
		{[]int{1, 1, 1}, []int{1, 1, 1}, "by client address: 1 of 3"},
		{[]int{2, 0, 6}, []int{1, 0, 3}, "by client address: 1 of 4"},
		{[]int{500, 500, 1}, []int{50, 49, 1}, "by client address: 50 of 100"},
		{[]int{65535, 1}, []int{99, 1}, "by client address: 99 of 100"},
		{[]int{0, 0}, []int{0, 0}, ""},
		{nil, nil, ""},
	} {
		resp := sdktest.MustRun(t, New(), "", request(tt.weights...))
		if got := sdktest.Weights(resp); !slices.Equal(got, tt.want) {
			t.Errorf("weights %v became %v, want %v", tt.weights, got, tt.want)
		}
		if len(tt.want) > 0 && resp.Results[0].Reason != tt.reason {
			t.Errorf("reason %q, want %q", resp.Results[0].Reason, tt.reason)
		}
		if resp.Balance != abi.BalanceSourceHash || resp.RequeueAfter != 0 || len(resp.State) > 0 {
			t.Errorf("balance %d, again after %v, %d bytes of state", resp.Balance, resp.RequeueAfter, len(resp.State))
		}
	}
}

// The share of an endpoint that has more than a slot changes by less than a slot for each that has only one.
func TestSharesStayWithinMaxTotal(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 500 {
		most := 1 + rnd.IntN(200)
		var list []int
		before := 0.0
		for range 1 + rnd.IntN(30) {
			w := rnd.IntN(1 << rnd.IntN(17))
			list, before = append(list, w), before+float64(w)
		}
		got, after, count := sdktest.Weights(sdktest.MustRun(t, New(), fmt.Sprintf(`{"maxTotal":%d}`, most), request(list...))), 0.0, 0
		for i, w := range got {
			if w == 0 != (list[i] == 0) {
				t.Fatalf("round %d: weight %d became %d", round, list[i], w)
			}
			after += float64(w)
			count += min(w, 1)
		}
		if after > float64(max(most, count)) {
			t.Fatalf("round %d: %v sum up to %v, more than %d", round, got, after, most)
		}
		for i, w := range got {
			if off := math.Abs(float64(w)/after - float64(list[i])/before); before > 0 && off > float64(1+count)/after {
				t.Fatalf("round %d: %v became %v: endpoint %d is off by %.3f", round, list, got, i, off)
			}
		}
	}
}

// The decision is the same on every node: nothing in it depends on the node, the zone or the time.
func TestEveryNodeDecidesTheSame(t *testing.T) {
	here := request(3, 1, 4)
	there := request(3, 1, 4)
	there.Node, there.Zone, there.NodeIndex, there.Now, there.Generation, there.State = "other", "b", 7, sdktest.Now+60_000, 99, []byte{1, 2, 3}
	there.Endpoints[1].Conditions |= abi.Local
	a, b := sdktest.MustRun(t, New(), "", here), sdktest.MustRun(t, New(), "", there)
	if !slices.Equal(sdktest.Weights(a), sdktest.Weights(b)) || a.Balance != b.Balance {
		t.Errorf("%v and %v", sdktest.Weights(a), sdktest.Weights(b))
	}
}

// Endpoints get clients in proportion to what their Pods declare.
func TestCapacityAndMaglevCompose(t *testing.T) {
	first := sdktest.Native(t, capacity.New, `{"from":"label:size"}`)
	second := sdktest.Native(t, New, "")
	req := request(1, 1, 1)
	req.Keys = []string{sdk.PodLabel("size")}
	for i, size := range []string{"30", "10", "20"} {
		req.Endpoints[i].Values = sdktest.Values(size)
	}
	all := sdktest.MustRunChain(t, req, first, second)
	if got := sdktest.Weights(all[1]); !slices.Equal(got, []int{3, 1, 2}) {
		t.Errorf("weights %v", got)
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"maxTotal":0}`:    "maxTotal: 0 is not 1 to 1000",
		`{"maxTotal":1001}`: "maxTotal: 1001 is not 1 to 1000",
		`{"maxTotal":1.5}`:  "maxTotal: want an integer, got 1.5",
		`{"size":1024}`:     `unknown field "size"`,
	})
}

func FuzzWeightsAndState(f *testing.F) {
	f.Add(uint16(100), []byte{1, 2, 0, 255}, []byte{})
	f.Add(uint16(1), []byte{255, 255}, []byte{1})
	f.Fuzz(func(t *testing.T, most uint16, list, state []byte) {
		if most == 0 || most > 1000 || len(list) > 300 || len(state) > abi.MaxStateLen {
			return
		}
		var all []int
		for i, w := range list {
			all = append(all, int(w)*(1+i*257%65535)%65536)
		}
		req := request(all...)
		req.State = state
		for i, w := range sdktest.Weights(sdktest.MustRun(t, New(), fmt.Sprintf(`{"maxTotal":%d}`, most), req)) {
			if w == 0 != (all[i] == 0) {
				t.Errorf("weight %d became %d", all[i], w)
			}
		}
	})
}
