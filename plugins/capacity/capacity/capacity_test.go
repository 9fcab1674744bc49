package capacity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// request returns a request with an endpoint for each value of a key; "-" stands for none.
func request(key string, values ...string) *abi.Request {
	var eps []abi.Endpoint
	for _, v := range values {
		e := sdktest.Ready("a")
		if v != "-" {
			e.Values = sdktest.Values(v)
		}
		eps = append(eps, e)
	}
	req := sdktest.NewRequest("a", nil, eps...)
	req.Keys = []string{key}
	return req
}

const annotation = "annotation:sluice.dev/capacity"

func TestCapacityIsWhatPodsDeclare(t *testing.T) {
	for _, tt := range []struct {
		settings, key string
		values        []string
		want          []float64
	}{
		{"", annotation, []string{"1", "2", "3"}, []float64{1, 2, 3}},
		{"", annotation, []string{"10", "20", "30"}, []float64{10, 20, 30}},
		{"", annotation, []string{"1.5", "1", "0.25"}, []float64{1.5, 1, 0.25}},
		{"", annotation, []string{"2", "-", "-"}, []float64{2, 1, 1}},
		{`{"default":0.5}`, annotation, []string{"2", "-"}, []float64{2, 0.5}},
		{"", annotation, []string{"2", "0", "1"}, []float64{2, 0, 1}},
		{"", annotation, []string{"0", "0"}, []float64{1, 1}}, // never empty
		{"", annotation, []string{" 3 ", "x", "-1", "1e9", "", "1.", ".5", "1.0001", "10000000"}, []float64{3, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"", annotation, []string{"1000000", "1"}, []float64{4294.960722, 0.004294}},
		{`{"from":"node-label:example.com/speed"}`, "node-label:example.com/speed", []string{"1.5", "1", "-"}, []float64{1.5, 1, 1}},
		{`{"from":"label:size"}`, "label:size", []string{"4", "2"}, []float64{4, 2}},
		{`{"from":"request:cpu"}`, sdk.PodCPU, []string{"500", "1500", "-", "0", "x"}, []float64{.5, 1.5, 1, 1, 1}},
		{`{"from":"request:cpu","default":2}`, sdk.PodCPU, []string{"50", "12000", "-"}, []float64{.05, 12, 2}},
	} {
		if got := sdktest.Answers(sdktest.MustRun(t, New(), tt.settings, request(tt.key, tt.values...))); !slices.Equal(got, tt.want) {
			t.Errorf("%s %v: capacities %v, want %v", tt.settings, tt.values, got, tt.want)
		}
	}
}

func TestReasonsSayWhereTheCapacityIsFrom(t *testing.T) {
	resp := sdktest.MustRun(t, New(), "", request(annotation, "2.50", "-", "much", strings.Repeat("y", 99), "a\n\x00"))
	for i, want := range []string{
		"capacity 2.5", "capacity 1 by default", `capacity 1 by default: "much" is no capacity`,
		`capacity 1 by default: "` + strings.Repeat("y", 32) + `..." is no capacity`, `capacity 1 by default: "a\n\x00" is no capacity`,
	} {
		if got := resp.Results[i].Reason; got != want {
			t.Errorf("endpoint %d: %q, want %q", i, got, want)
		}
	}
}

func TestCapacitiesOfPreviousPluginsAreMultiplied(t *testing.T) {
	req := request(annotation, "2", "3", "5")
	for i, c := range []uint32{300_000, 200_000, 0} {
		req.Endpoints[i].Capacity = c
	}
	if got := sdktest.Answers(sdktest.MustRun(t, New(), "", req)); !slices.Equal(got, []float64{.6, .6, 0}) {
		t.Errorf("capacities %v", got)
	}
}

// An endpoint that is hinted to other zones has capacity, and may be the only one.
func TestEndpointsWithoutShareDoNotKeepThePoolAlive(t *testing.T) {
	req := request(annotation, "0", "2")
	req.Endpoints[1].Share = 0
	if got := sdktest.Answers(sdktest.MustRun(t, New(), "", req)); !slices.Equal(got, []float64{1, 1}) {
		t.Errorf("capacities %v", got)
	}
}

func TestCapacityAndDrainCompose(t *testing.T) {
	req := request(annotation, "1", "1", "4")
	leaving := sdktest.Terminating("a", sdktest.Now-10_000)
	leaving.Addr, leaving.Values = req.Endpoints[2].Addr, req.Endpoints[2].Values
	req.Endpoints[2] = leaving
	all := sdktest.MustRunChain(t, req, sdktest.Native(t, lifecycle.New, ""), sdktest.Native(t, New, ""))
	if got := sdktest.Answers(all[1]); !slices.Equal(got, []float64{1, 1, 2}) { // half of 4
		t.Errorf("capacities %v", got)
	}
}

// Ratios are exact to a thousandth, however large the capacities are.
func TestCapacitiesAgreeWithTheReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		var values []string
		var exact []float64
		for range 1 + rnd.IntN(40) {
			milli := 1000 + rnd.IntN(1_000_000)*(1+rnd.IntN(2)*1000)
			milli = min(milli, 1_000_000_000)
			values = append(values, fmt.Sprintf("%d.%03d", milli/1000, milli%1000))
			exact = append(exact, float64(milli))
		}
		got := sdktest.Answers(sdktest.MustRun(t, New(), "", request(annotation, values...)))
		for i := range got {
			if ratio, want := got[i]/got[0], exact[i]/exact[0]; math.Abs(ratio/want-1) > .001 {
				t.Fatalf("round %d: %s has %.6f of the capacity of %s, want %.6f", round, values[i], ratio, values[0], want)
			}
		}
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"from":"capacity"}`:         `from: "capacity" is none of label:KEY, annotation:KEY, request:cpu and node-label:KEY`,
		`{"from":"service-label:x"}`:  "from: ",
		`{"from":"label:a\nlabel:b"}`: "from: ",
		`{"from":""}`:                 "from: ",
		`{"default":0}`:               "default: 0 is not 0.001 to 1000000",
		`{"default":-1}`:              "default: -1",
		`{"default":1000001}`:         "default: 1.000001e+06",
		`{"maxTotal":100}`:            `unknown field "maxTotal"`,
		`{"unknown":1}`:               `unknown field "unknown"`,
	})
}

func FuzzSettingsValuesAndState(f *testing.F) {
	f.Add("", "2", "x", []byte{1}, uint32(1), uint32(math.MaxUint32))
	f.Add(`{"from":"request:cpu","default":3}`, "250", "99999999999999999999", []byte{}, uint32(7), uint32(0))
	f.Fuzz(func(t *testing.T, settings, a, b string, state []byte, w, x uint32) {
		p := New()
		if p.Configure([]byte(settings)) != nil || len(state) > abi.MaxStateLen {
			return
		}
		req := request(p.(sdk.Keyer).Keys()[0], a, b, "-")
		req.State = state
		req.Endpoints[0].Capacity, req.Endpoints[1].Capacity = w, x
		resp := sdktest.MustRun(t, New(), settings, req)
		for i, r := range resp.Results {
			if req.Endpoints[i].Capacity == 0 && r.Value > 0 {
				t.Errorf("endpoint %d gets %d", i, r.Value)
			}
		}
		if resp.Results[2].Value == 0 {
			t.Error("the endpoint without a value gets none")
		}
	})
}
