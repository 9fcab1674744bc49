package canary

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/slow-start/slowstart"
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

// percents returns the share of each value in percent.
func percents(req *abi.Request, resp *abi.Response) map[string]float64 {
	sum, total := map[string]float64{}, 0.0
	for i, a := range resp.Results {
		for _, v := range req.Endpoints[i].Values {
			sum[v.Text] += float64(a.Weight)
		}
		total += float64(a.Weight)
	}
	for v := range sum {
		sum[v] *= 100 / total
	}
	return sum
}

func TestGroupsGetTheirPercent(t *testing.T) {
	for name, tt := range map[string]struct {
		settings string
		req      *abi.Request
		want     map[string]float64
		most     int // sum of weights
	}{
		"5 % to one of ten":   {`{"groups":[{"value":"canary","percent":5}]}`, request(track(1, "canary"), track(9, "stable")), map[string]float64{"canary": 5}, 200},
		"5 % to many":         {`{"groups":[{"value":"canary","percent":5}]}`, request(track(20, "canary"), track(2, "stable")), map[string]float64{"canary": 5}, 1000},
		"1 %":                 {`{"groups":[{"value":"canary","percent":1}]}`, request(track(1, "canary"), track(9, "stable")), map[string]float64{"canary": 1}, 110},
		"a quarter of a %":    {`{"groups":[{"value":"canary","percent":0.25}]}`, request(track(1, "canary"), track(3, "stable")), map[string]float64{"canary": .25}, 420},
		"none":                {`{"groups":[{"value":"canary","percent":0}]}`, request(track(3, "canary"), track(3, "stable")), map[string]float64{"canary": 0}, 3},
		"all":                 {`{"groups":[{"value":"canary","percent":100}]}`, request(track(3, "canary"), track(3, "stable")), map[string]float64{"canary": 100}, 3},
		"as many as they are": {`{"groups":[{"value":"canary","percent":50}]}`, request(track(3, "canary"), track(3, "stable")), map[string]float64{"canary": 50}, 6},
		"no canary":           {`{"groups":[{"value":"canary","percent":20}]}`, request(track(3, "stable")), map[string]float64{"stable": 100}, 3},
		"only canaries":       {`{"groups":[{"value":"canary","percent":20}]}`, request(track(3, "canary")), map[string]float64{"canary": 100}, 3},
		"two groups, others":  {`{"groups":[{"value":"x","percent":10},{"value":"y","percent":30}]}`, request(track(1, "x"), track(1, "y"), track(2, "z")), map[string]float64{"x": 10, "y": 30, "z": 60}, 20},
		"an empty group":      {`{"groups":[{"value":"x","percent":10},{"value":"y","percent":30}]}`, request(track(1, "y"), track(2, "z")), map[string]float64{"y": 30, "z": 70}, 40},
		"no others":           {`{"groups":[{"value":"x","percent":10},{"value":"y","percent":30}]}`, request(track(1, "x"), track(1, "y")), map[string]float64{"x": 25, "y": 75}, 4},
		"no label":            {`{"groups":[{"value":"canary","percent":20}]}`, request(track(1, "canary"), sdktest.Repeat(4, sdktest.Ready("a"))), map[string]float64{"canary": 20}, 5},
		"the empty value":     {`{"groups":[{"value":"","percent":20}]}`, request(track(1, ""), sdktest.Repeat(4, sdktest.Ready("a"))), map[string]float64{"": 20}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			resp := sdktest.MustRun(t, New(), tt.settings, tt.req)
			got := percents(tt.req, resp)
			for v, want := range tt.want {
				if math.Abs(got[v]-want) > .0501*want {
					t.Errorf("%q gets %.2f %%, want %.2f %%: %v", v, got[v], want, sdktest.Weights(resp))
				}
			}
			sum := 0
			for _, w := range sdktest.Weights(resp) {
				sum += w
			}
			if sum > tt.most {
				t.Errorf("weights sum up to %d, more than %d", sum, tt.most)
			}
		})
	}
}

func TestReasonsHaveTheShares(t *testing.T) {
	req := request(track(1, "canary"), track(39, "stable"))
	resp := sdktest.MustRun(t, New(), `{"groups":[{"value":"canary","percent":2.5}]}`, req)
	if a, b := resp.Results[0].Reason, resp.Results[1].Reason; a != `"canary": 2.5 %` || b != "others: 97.5 %" {
		t.Errorf("%q, %q", a, b)
	}
	resp = sdktest.MustRun(t, New(), `{"groups":[{"value":"canary","percent":0}]}`, request(track(2, "canary")))
	if a := resp.Results[0]; a.Weight != 1 || !strings.Contains(a.Reason, "only groups with 0 %") {
		t.Errorf("%+v", a)
	}
}

// shares is a second implementation of the rule, in floating point.
func shares(percents map[string]float64, weights map[string]float64) map[string]float64 {
	out, given := map[string]float64{}, 0.0
	for v, p := range percents {
		if weights[v] > 0 {
			out[v] = p
			given += p
		}
	}
	if weights["others"] > 0 {
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
		req, sum := request(), map[string]float64{}
		for range 1 + rnd.IntN(20) {
			v := append(slices.Clone(values), "others", "others")[rnd.IntN(len(values)+2)]
			e := track(1, v)[0]
			if e.Weight = uint32(rnd.IntN(4)); e.Weight == 0 {
				e.Conditions &^= abi.Chosen
			}
			sum[v] += float64(e.Weight)
			req.Endpoints = append(req.Endpoints, e)
		}
		keys := req.Keys
		req = sdktest.NewRequest("a", nil, req.Endpoints...)
		req.Keys = keys
		resp := sdktest.MustRun(t, New(), `{"tolerancePercent":0,"maxTotal":65535,"groups":[`+strings.Join(groups, ",")+`]}`, req)
		got := percents(req, resp)
		for v, p := range shares(want, sum) {
			if math.IsNaN(p) {
				continue // only groups with 0 %
			}
			if math.Abs(got[v]-p) > .5 {
				t.Fatalf("round %d: %v of %v: %q gets %.2f %%, want %.2f %%: %v", round, want, sum, v, got[v], p, sdktest.Weights(resp))
			}
		}
		for i, a := range resp.Results {
			for j, b := range resp.Results {
				e, f := req.Endpoints[i], req.Endpoints[j]
				if e.Values[0] == f.Values[0] && int(a.Weight)*int(f.Weight) != int(b.Weight)*int(e.Weight) {
					t.Fatalf("round %d: weights %d and %d became %d and %d", round, e.Weight, f.Weight, a.Weight, b.Weight)
				}
			}
		}
	}
}

// A canary that has just started gets a part of its group's share.
func TestSlowStartAndCanaryCompose(t *testing.T) {
	slow := sdktest.Native(t, slowstart.New, "")
	canary := sdktest.Native(t, New, `{"groups":[{"value":"canary","percent":30}],"tolerancePercent":0}`)
	req := request(track(2, "canary"), track(2, "stable"))
	req.Endpoints[1].ReadySince = sdktest.Now - 30_000
	all := sdktest.MustRunChain(t, req, slow, canary)
	w := sdktest.Weights(all[1])
	if got := percents(req, all[1])["canary"]; math.Abs(got-30) > .1 || w[0] != 2*w[1] {
		t.Errorf("%.1f %% to canaries, weights %v", got, w)
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		"":              "groups: 0 groups, want 1 to 16",
		`{"groups":[]}`: "groups: 0 groups",
		`{"by":"version","groups":[{"value":"a","percent":1}]}`:              `by: "version" is neither`,
		`{"groups":[{"percent":1}]}`:                                         "groups[0].value: missing",
		`{"groups":[{"value":"a"}]}`:                                         "groups[0].percent: missing",
		`{"groups":[{"value":"a","percent":-1}]}`:                            "groups[0].percent: -1 is not 0 to 100",
		`{"groups":[{"value":"a","percent":101}]}`:                           "groups[0].percent: 101",
		`{"groups":[{"value":"a","percent":0.0001}]}`:                        "groups[0].percent: 0.0001 is neither 0 nor",
		`{"groups":[{"value":"a","percent":60},{"value":"b","percent":41}]}`: "groups[1].percent: the groups have more than 100 % together",
		`{"groups":[{"value":"a","percent":1},{"value":"a","percent":1}]}`:   `groups[1].value: "a" is in another group`,
		`{"groups":[{"value":"a","percent":"1"}]}`:                           "percent: want a number, got a string",
		`{"groups":[{"value":"a","percent":1}],"maxTotal":0}`:                "maxTotal: 0",
		`{"groups":[{"value":"a","percent":1}],"tolerancePercent":51}`:       "tolerancePercent: 51",
	})
}

func FuzzSettingsValuesAndState(f *testing.F) {
	f.Add(`{"groups":[{"value":"canary","percent":5}]}`, "canary", "", []byte{1}, uint16(1), uint16(65535))
	f.Add(`{"by":"zone","groups":[{"value":"a","percent":0}]}`, "a", "b", []byte{}, uint16(0), uint16(3))
	f.Fuzz(func(t *testing.T, settings, a, b string, state []byte, w, x uint16) {
		p := New()
		if p.Configure([]byte(settings)) != nil || len(state) > abi.MaxStateLen {
			return
		}
		req := request(track(2, a), track(1, b))
		req.Keys, req.State = p.(sdk.Keyer).Keys(), state
		req.Endpoints[0].Weight, req.Endpoints[2].Weight = uint32(w), uint32(x)
		resp := sdktest.MustRun(t, New(), settings, req)
		sum := 0
		for i, r := range resp.Results {
			if sum += int(r.Weight); r.Weight > 0 && req.Endpoints[i].Weight == 0 {
				t.Errorf("endpoint %d gets %d", i, r.Weight)
			}
		}
		if sum == 0 {
			t.Error("the set is empty")
		}
	})
}
