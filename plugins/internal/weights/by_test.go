package weights

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

func TestCheckByNamesTheField(t *testing.T) {
	for _, by := range []string{"zone", "label:track", "annotation:example.com/track"} {
		if err := CheckBy("by", by); err != nil {
			t.Errorf("%s: %v", by, err)
		}
	}
	for _, by := range []string{"", "Zone", "track", "label:", "label:a b", "request:cpu", "service-label:x", "label:a\nlabel:b", "annotation:" + strings.Repeat("x", 400)} {
		if err := CheckBy("by", by); err == nil || !strings.HasPrefix(err.Error(), "by: ") {
			t.Errorf("%q: %v", by, err)
		}
	}
}

// sorter is a plugin that gives each endpoint the number of its group as its share.
type sorter struct{ Sorter }

func (*sorter) Configure([]byte) error { return nil }

func (s *sorter) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		resp.SetShare(i, s.Group(req, i))
	}
	return nil
}

func groups(t *testing.T, s Sorter, req *abi.Request) (out []int) {
	t.Helper()
	for _, r := range sdktest.MustRun(t, &sorter{s}, "", req).Results {
		out = append(out, int(r.Value))
	}
	return out
}

func TestEndpointsAreSortedByValue(t *testing.T) {
	of := map[string]int{"a": 1, "b": 2, "": 3}
	with := func(zone string, values ...string) abi.Endpoint {
		e := sdktest.Ready(zone)
		e.Values = sdktest.Values(values...)
		return e
	}
	req := sdktest.NewRequest("b", nil, with("a", "b"), with("b", "a"), with("c", ""), with("", "x"), with("b"))
	req.Keys = []string{"label:l"}
	for _, tt := range []struct {
		by           string
		other, local int
		want         []int
	}{
		{"label:l", 9, 9, []int{2, 1, 3, 9, 9}},
		{ByZone, 9, 9, []int{1, 2, 9, 9, 2}},
		{ByZone, 9, 1, []int{1, 1, 9, 9, 1}},
		{ByZone, 9, 5, []int{1, 2, 9, 9, 2}}, // listed before the zone of this node
	} {
		if got := groups(t, NewSorter(tt.by, of, tt.other, tt.local), req); !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	if keys := NewSorter(ByZone, of, 0, 0); keys.Keys() != nil {
		t.Error("a key for zones")
	}
}

// The cache of IDs does not change answers, and is bounded.
func TestManyValuesAreSorted(t *testing.T) {
	of := map[string]int{}
	var eps []abi.Endpoint
	for i := range 3000 {
		e := sdktest.Ready("a")
		e.Values = sdktest.Values(fmt.Sprint("value ", i))
		if eps = append(eps, e); i%7 == 0 {
			of[e.Values[0].Text] = i % 100
		}
	}
	req := sdktest.NewRequest("a", nil, eps...)
	req.Keys = []string{"annotation:a"}
	s := &sorter{NewSorter("annotation:a", of, 1000, 1000)}
	p := sdktest.Native(t, func() sdk.Plugin { return s }, "")
	for range 2 {
		all := sdktest.MustRunChain(t, req, p)
		for i, r := range all[0].Results {
			want, ok := of[fmt.Sprint("value ", i)]
			if !ok {
				want = 1000
			}
			if w := int(r.Value); w != want {
				t.Fatalf("endpoint %d: group %d, want %d", i, w, want)
			}
		}
	}
	if len(s.groups) > maxIDs {
		t.Errorf("%d IDs in the cache", len(s.groups))
	}
}
