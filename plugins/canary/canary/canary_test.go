package canary

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

// track returns n endpoints with a value of the label.
func track(n int, value string) []abi.Endpoint {
	e := sdktest.Ready("a")
	e.Values = sdktest.Values(value)
	return sdktest.Repeat(n, e)
}

// request returns a request in which endpoints have values of the label track.
func request(endpoints ...[]abi.Endpoint) *abi.Request {
	req := sdktest.NewRequest("a", nil, slices.Concat(endpoints...)...)
	req.Keys = []string{sdk.PodLabel("track")}
	return req
}

// percents returns what each value gets of the new connections, in percent.
func percents(t *testing.T, req *abi.Request, plugins ...*sdk.NativePlugin) map[string]float64 {
	t.Helper()
	parts, err := sdktest.Parts(req, plugins...)
	if err != nil || parts == nil {
		t.Fatalf("parts %v, %v", parts, err)
	}
	sum := map[string]float64{}
	for i, part := range parts {
		for _, v := range req.Endpoints[i].Values {
			sum[v.Text] += 100 * part
		}
	}
	return sum
}

func TestGroupsGetTheirPercent(t *testing.T) {
	for name, tt := range map[string]struct {
		settings string
		req      *abi.Request
		want     map[string]float64
	}{
		"5 % to one of ten":   {`{"groups":[{"value":"canary","percent":5}]}`, request(track(1, "canary"), track(9, "stable")), map[string]float64{"canary": 5}},
		"5 % to many":         {`{"groups":[{"value":"canary","percent":5}]}`, request(track(20, "canary"), track(2, "stable")), map[string]float64{"canary": 5}},
		"1 %":                 {`{"groups":[{"value":"canary","percent":1}]}`, request(track(1, "canary"), track(9, "stable")), map[string]float64{"canary": 1}},
		"a quarter of a %":    {`{"groups":[{"value":"canary","percent":0.25}]}`, request(track(1, "canary"), track(3, "stable")), map[string]float64{"canary": .25}},
		"none":                {`{"groups":[{"value":"canary","percent":0}]}`, request(track(3, "canary"), track(3, "stable")), map[string]float64{"canary": 0}},
		"all":                 {`{"groups":[{"value":"canary","percent":100}]}`, request(track(3, "canary"), track(3, "stable")), map[string]float64{"canary": 100}},
		"as many as they are": {`{"groups":[{"value":"canary","percent":50}]}`, request(track(3, "canary"), track(3, "stable")), map[string]float64{"canary": 50}},
		"no canary":           {`{"groups":[{"value":"canary","percent":20}]}`, request(track(3, "stable")), map[string]float64{"stable": 100}},
		"only canaries":       {`{"groups":[{"value":"canary","percent":20}]}`, request(track(3, "canary")), map[string]float64{"canary": 100}},
		"two groups, others":  {`{"groups":[{"value":"x","percent":10},{"value":"y","percent":30}]}`, request(track(1, "x"), track(1, "y"), track(2, "z")), map[string]float64{"x": 10, "y": 30, "z": 60}},
		"an empty group":      {`{"groups":[{"value":"x","percent":10},{"value":"y","percent":30}]}`, request(track(1, "y"), track(2, "z")), map[string]float64{"y": 30, "z": 70}},
		"no others":           {`{"groups":[{"value":"x","percent":10},{"value":"y","percent":30}]}`, request(track(1, "x"), track(1, "y")), map[string]float64{"x": 25, "y": 75}},
		"no label":            {`{"groups":[{"value":"canary","percent":20}]}`, request(track(1, "canary"), sdktest.Repeat(4, sdktest.Ready("a"))), map[string]float64{"canary": 20}},
		"the empty value":     {`{"groups":[{"value":"","percent":20}]}`, request(track(1, ""), sdktest.Repeat(4, sdktest.Ready("a"))), map[string]float64{"": 20}},
	} {
		t.Run(name, func(t *testing.T) {
			got := percents(t, tt.req, sdktest.Native(t, New, tt.settings))
			for v, want := range tt.want {
				if math.Abs(got[v]-want) > 1e-4 {
					t.Errorf("%q gets %.4f %%, want %.4f %%", v, got[v], want)
				}
			}
		})
	}
}

func TestReasonsHaveTheParts(t *testing.T) {
	req := request(track(1, "canary"), track(39, "stable"))
	resp := sdktest.MustRun(t, New(), `{"groups":[{"value":"canary","percent":2.5}]}`, req)
	if a, b := resp.Results[0].Reason, resp.Results[1].Reason; a != `"canary": 2.5 %` || b != "others: 97.5 %" {
		t.Errorf("%q, %q", a, b)
	}
}

// If only groups with 0 % have endpoints, somebody has to serve.
func TestOnlyGroupsWithoutAPartGetEverything(t *testing.T) {
	got := percents(t, request(track(2, "canary")), sdktest.Native(t, New, `{"groups":[{"value":"canary","percent":0}]}`))
	if math.Abs(got["canary"]-100) > 1e-9 {
		t.Errorf("%v", got)
	}
}

// shares is a second implementation of the rule, in floating point.
func shares(percents map[string]float64, capacity map[string]float64) map[string]float64 {
	out, given := map[string]float64{}, 0.0
	for v, p := range percents {
		if capacity[v] > 0 {
			out[v] = p
			given += p
		}
	}
	if capacity["others"] > 0 {
		out["others"] = 100 - given
		given = 100
	}
	for v := range out {
		out[v] *= 100 / given
	}
	return out
}

func TestSharesAgreeWithTheReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		values := []string{"a", "b", "c"}[:1+rnd.IntN(3)]
		want, left := map[string]float64{}, 100
		var groups []string
		for _, v := range values {
			n := rnd.IntN(left + 1)
			left -= n
			want[v] = float64(n)
			groups = append(groups, fmt.Sprintf(`{"value":%q,"percent":%d}`, v, n))
		}
		var eps []abi.Endpoint
		for range 1 + rnd.IntN(20) {
			eps = append(eps, track(1, append(slices.Clone(values), "others", "others")[rnd.IntN(len(values)+2)])...)
		}
		req, sum := request(eps), map[string]float64{}
		for i := range req.Endpoints {
			e := &req.Endpoints[i]
			e.Capacity, e.Share = uint32(rnd.IntN(4))*300_000, uint32(1+rnd.IntN(3))*500_000
			sum[e.Values[0].Text] += float64(e.Capacity)
		}
		if req.Parts(nil) == nil {
			continue
		}
		plugin := sdktest.Native(t, New, `{"groups":[`+strings.Join(groups, ",")+`]}`)
		got := percents(t, req, plugin)
		for v, p := range shares(want, sum) {
			if math.IsNaN(p) {
				continue // only groups with 0 %
			}
			if math.Abs(got[v]-p) > 1e-3 {
				t.Fatalf("round %d: %v of %v: %q gets %.4f %%, want %.4f %%", round, want, sum, v, got[v], p)
			}
		}
		for i, r := range sdktest.MustRunChain(t, req, plugin)[0].Results {
			if r.Value != req.Endpoints[i].Share {
				t.Fatalf("round %d: share %d became %d", round, req.Endpoints[i].Share, r.Value)
			}
		}
	}
}

// A canary that has just started gets a part of its group's part.
func TestWarmUpAndCanaryCompose(t *testing.T) {
	req := request(track(2, "canary"), track(2, "stable"))
	req.Endpoints[1].ReadySince = sdktest.Now - 30_000
	slow, canary := sdktest.Native(t, lifecycle.New, ""), sdktest.Native(t, New, `{"groups":[{"value":"canary","percent":30}]}`)
	parts, err := sdktest.Parts(req, slow, canary)
	if want := []float64{.2, .1, .35, .35}; err != nil || !near(parts, want) {
		t.Errorf("parts %v, want %v, %v", parts, want, err)
	}
}

// A second canary divides the groups of the first one: 10 % of the canaries and of the others have the flag.
func TestCanariesCompose(t *testing.T) {
	req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Ready("b"), sdktest.Ready("a"), sdktest.Ready("b"))
	for i, v := range []string{"canary", "canary", "stable", "stable"} {
		req.Endpoints[i].Values = sdktest.Values(v)
	}
	req.Keys = []string{sdk.PodLabel("track")}
	version := sdktest.Native(t, New, `{"groups":[{"value":"canary","percent":30}]}`)
	zones := sdktest.Native(t, New, `{"by":"zone","groups":[{"value":"b","percent":10}]}`)
	for _, chain := range [][]*sdk.NativePlugin{{version, zones}, {zones, version}} {
		parts, err := sdktest.Parts(req, chain...)
		if want := []float64{.27, .03, .63, .07}; err != nil || !near(parts, want) {
			t.Errorf("parts %v, want %v, %v", parts, want, err)
		}
	}
}

// TestTooManyGroupsStayAsTheyAre: an answer may have 64 groups.
func TestTooManyGroupsStayAsTheyAre(t *testing.T) {
	req := sdktest.NewRequest("a", nil, sdktest.Ready("a"), sdktest.Ready("b"), sdktest.Ready("c"))
	for i := range req.Endpoints {
		req.Endpoints[i].Values = sdktest.Values(req.Endpoints[i].Zone)
	}
	req.Keys = []string{sdk.PodLabel("track")}
	var groups []string
	for i := range 8 {
		groups = append(groups, fmt.Sprintf(`{"value":"%c","percent":%d}`, 'a'+i, i+1))
	}
	settings := `{"groups":[` + strings.Join(groups, ",") + `]}`
	one, two := sdktest.Native(t, New, settings), sdktest.Native(t, New, settings)
	want, err := sdktest.Parts(req, one)
	if err != nil || len(want) != 3 {
		t.Fatal(want, err)
	}
	got, err := sdktest.Parts(req, one, two) // 9 × 9 groups
	if err != nil || !near(got, want) {
		t.Errorf("parts %v, %v, want %v", got, err, want)
	}
}

func near(got, want []float64) bool {
	return slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-5 })
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		"":              "groups: 0 groups, want 1 to 16",
		`{"groups":[]}`: "groups: 0 groups",
		`{"by":"version","groups":[{"value":"a","percent":1}]}`:              `by: "version" is none of`,
		`{"groups":[{"percent":1}]}`:                                         "groups[0].value: missing",
		`{"groups":[{"value":"a"}]}`:                                         "groups[0].percent: missing",
		`{"groups":[{"value":"a","percent":-1}]}`:                            "groups[0].percent: -1 is not 0 to 100",
		`{"groups":[{"value":"a","percent":101}]}`:                           "groups[0].percent: 101",
		`{"groups":[{"value":"a","percent":0.0001}]}`:                        "groups[0].percent: 0.0001 is neither 0 nor",
		`{"groups":[{"value":"a","percent":60},{"value":"b","percent":41}]}`: "groups[1].percent: the groups have more than 100 % together",
		`{"groups":[{"value":"a","percent":1},{"value":"a","percent":1}]}`:   `groups[1].value: "a" is in another group`,
		`{"groups":[{"value":"a","percent":"1"}]}`:                           "percent: want a number, got a string",
		`{"groups":[{"value":"a","percent":1}],"maxTotal":9}`:                `unknown field "maxTotal"`,
		`{"groups":[{"value":"a","percent":1}],"tolerancePercent":5}`:        `unknown field "tolerancePercent"`,
	})
}

func FuzzSettingsValuesAndState(f *testing.F) {
	f.Add(`{"groups":[{"value":"canary","percent":5}]}`, "canary", "", []byte{1}, uint32(1), uint32(65535))
	f.Add(`{"by":"zone","groups":[{"value":"a","percent":0}]}`, "a", "b", []byte{}, uint32(0), uint32(3))
	f.Fuzz(func(t *testing.T, settings, a, b string, state []byte, w, x uint32) {
		p := New()
		if p.Configure([]byte(settings)) != nil || len(state) > abi.MaxStateLen {
			return
		}
		req := request(track(2, a), track(1, b))
		req.Keys, req.State = p.(sdk.Keyer).Keys(), state
		req.Endpoints[0].Capacity, req.Endpoints[2].Capacity = w, x
		before := req.Parts(nil)
		after, err := sdktest.Parts(req, sdktest.Native(t, New, settings))
		if err != nil || len(before) != len(after) {
			t.Fatalf("parts %v became %v, %v", before, after, err)
		}
		for i := range after {
			if after[i] > 0 && before[i] == 0 {
				t.Errorf("endpoint %d gets %v", i, after[i])
			}
		}
	})
}
