package capacity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/staged-drain/stageddrain"
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

func TestWeightsAreInProportionToCapacity(t *testing.T) {
	for _, tt := range []struct {
		settings, key string
		values        []string
		want          []int
	}{
		{"", annotation, []string{"1", "2", "3"}, []int{1, 2, 3}},
		{"", annotation, []string{"10", "20", "30"}, []int{1, 2, 3}},
		{"", annotation, []string{"1.5", "1", "0.25"}, []int{6, 4, 1}},
		{"", annotation, []string{"2", "-", "-"}, []int{2, 1, 1}},
		{`{"default":0.5}`, annotation, []string{"2", "-"}, []int{4, 1}},
		{"", annotation, []string{"2", "0", "1"}, []int{2, 0, 1}},
		{"", annotation, []string{"0", "0"}, []int{1, 1}}, // never empty
		{"", annotation, []string{" 3 ", "x", "-1", "1e9", "", "1.", ".5", "1.0001", "10000000"}, []int{3, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"", annotation, []string{"1000000", "1"}, []int{999, 1}},
		{`{"from":"label:size"}`, "label:size", []string{"4", "2"}, []int{2, 1}},
		{`{"from":"request:cpu"}`, sdk.PodCPU, []string{"500", "1500", "-", "0", "x"}, []int{1, 3, 2, 2, 2}},
		{`{"from":"request:cpu","default":2}`, sdk.PodCPU, []string{"50", "12000", "-"}, []int{1, 240, 40}},
		{`{"maxTotal":10}`, annotation, []string{"1.01", "1", "1"}, []int{4, 3, 3}},
	} {
		if got := sdktest.Weights(sdktest.MustRun(t, New(), tt.settings, request(tt.key, tt.values...))); !slices.Equal(got, tt.want) {
			t.Errorf("%s %v: weights %v, want %v", tt.settings, tt.values, got, tt.want)
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

func TestWeightsOfPreviousPluginsAreMultiplied(t *testing.T) {
	req := request(annotation, "2", "3", "5")
	req.Endpoints[0].Weight, req.Endpoints[1].Weight, req.Endpoints[2].Weight = 3, 2, 0
	if got := sdktest.Weights(sdktest.MustRun(t, New(), "", req)); !slices.Equal(got, []int{1, 1, 0}) {
		t.Errorf("weights %v", got)
	}
}

func TestStagedDrainAndCapacityCompose(t *testing.T) {
	req := request(annotation, "1", "1", "4")
	leaving := sdktest.Terminating("a", sdktest.Now-10_000)
	leaving.Addr, leaving.Values = req.Endpoints[2].Addr, req.Endpoints[2].Values
	req.Endpoints[2] = leaving
	all := sdktest.MustRunChain(t, req, sdktest.Native(t, stageddrain.New, ""), sdktest.Native(t, New, ""))
	if got := sdktest.Weights(all[1]); !slices.Equal(got, []int{1, 1, 2}) { // half of 4
		t.Errorf("weights %v", got)
	}
}

// Shares deviate by less than 1 ÷ maxTotal from the exact ones, unless an endpoint would get less than that.
func TestSharesAgreeWithTheReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		var values []string
		var exact []float64
		sum := 0.0
		for range 1 + rnd.IntN(40) {
			milli := 1000 + rnd.IntN(99_000)
			values = append(values, fmt.Sprintf("%d.%03d", milli/1000, milli%1000))
			exact = append(exact, float64(milli))
			sum += float64(milli)
		}
		resp := sdktest.MustRun(t, New(), `{"maxTotal":10000}`, request(annotation, values...))
		total := 0
		for _, w := range sdktest.Weights(resp) {
			total += w
		}
		if total > 10_000 || total == 0 {
			t.Fatalf("round %d: total %d", round, total)
		}
		for i, w := range sdktest.Weights(resp) {
			if got, want := float64(w)/float64(total), exact[i]/sum; math.Abs(got-want) > 1.0001/10_000 {
				t.Fatalf("round %d: endpoint %d with %s gets %.5f, want %.5f", round, i, values[i], got, want)
			}
		}
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"from":"capacity"}`:         `from: "capacity" is neither label:KEY nor annotation:KEY nor request:cpu`,
		`{"from":"service-label:x"}`:  "from: ",
		`{"from":"label:a\nlabel:b"}`: "from: ",
		`{"from":""}`:                 "from: ",
		`{"default":0}`:               "default: 0 is not 0.001 to 1000000",
		`{"default":-1}`:              "default: -1",
		`{"default":1000001}`:         "default: 1.000001e+06",
		`{"maxTotal":0}`:              "maxTotal: 0 is not 1 to 65535",
		`{"maxTotal":65536}`:          "maxTotal: 65536",
		`{"unknown":1}`:               `unknown field "unknown"`,
	})
}

func FuzzSettingsValuesAndState(f *testing.F) {
	f.Add("", "2", "x", []byte{1}, uint16(1), uint16(65535))
	f.Add(`{"from":"request:cpu","maxTotal":3}`, "250", "99999999999999999999", []byte{}, uint16(7), uint16(0))
	f.Fuzz(func(t *testing.T, settings, a, b string, state []byte, w, x uint16) {
		p := New()
		if p.Configure([]byte(settings)) != nil || len(state) > abi.MaxStateLen {
			return
		}
		req := request(p.(sdk.Keyer).Keys()[0], a, b, "-")
		req.State = state
		req.Endpoints[0].Weight, req.Endpoints[1].Weight = uint32(w), uint32(x)
		resp := sdktest.MustRun(t, New(), settings, req)
		for i, r := range resp.Results {
			if req.Endpoints[i].Weight == 0 && r.Weight > 0 {
				t.Errorf("endpoint %d gets %d", i, r.Weight)
			}
		}
		if resp.Results[2].Weight == 0 {
			t.Error("the endpoint without a value gets none")
		}
	})
}
