package policy

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// notInDigest lists the fields that do not require a new call when they change.
var notInDigest = map[string]string{
	"Request.Now":              "time: a plugin asks for a later call itself",
	"Request.Generation":       "derived from the digest",
	"Request.State":            "the plugin's own answer",
	"Request.Settings":         "in the digest of the step, see TestStepDigestCoversRevisionSettingsAndWeights",
	"Request.ConnectionsAgeMS": "with Endpoint.Connections",
	"Request.OutcomesWindowMS": "with Endpoint.Outcomes",
	"Endpoint.Weight":          "in the digest of the step, see TestStepDigestCoversRevisionSettingsAndWeights",
	"Endpoint.PriorWeight":     "the chain's own answer",
	"Endpoint.Connections":     "changes all the time: a plugin asks for a later call itself",
	"Endpoint.Outcomes":        "changes all the time: the planner asks again after new failures",
}

func TestDigestCoversRequest(t *testing.T) {
	checked := map[string]bool{}
	check := func(request func() *abi.Request, part func(*abi.Request) reflect.Value) {
		typ := part(request()).Type()
		for i := range typ.NumField() {
			name := typ.Name() + "." + typ.Field(i).Name
			if name == "Request.Zones" || name == "Request.Endpoints" {
				continue // by field, below
			}
			checked[name] = true
			r := request()
			before := new(digester).request(r)
			change(t, name, part(r).Field(i))
			_, leftOut := notInDigest[name]
			if changed := new(digester).request(r) != before; changed == leftOut {
				t.Errorf("%s: the digest changes with it: %v; notInDigest lists it: %v", name, changed, leftOut)
			}
		}
	}
	request := func() *abi.Request {
		return &abi.Request{
			Keys: []string{""}, ServiceValues: []abi.Value{{Present: true}}, Zones: []abi.Zone{{}},
			Endpoints: []abi.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Values: []abi.Value{{Present: true}}}},
		}
	}
	check(request, func(r *abi.Request) reflect.Value { return reflect.ValueOf(r).Elem() })
	check(request, func(r *abi.Request) reflect.Value { return reflect.ValueOf(&r.Zones[0]).Elem() })
	check(request, func(r *abi.Request) reflect.Value { return reflect.ValueOf(&r.Endpoints[0]).Elem() })
	check(request, func(r *abi.Request) reflect.Value { return reflect.ValueOf(&r.Endpoints[0].Values[0]).Elem() })
	check(request, func(r *abi.Request) reflect.Value { return reflect.ValueOf(&r.ServiceValues[0]).Elem() })
	for name := range notInDigest {
		if !checked[name] {
			t.Errorf("notInDigest lists %s, which does not exist", name)
		}
	}
}

// TestDigestTellsSimilarRequestsApart: no two of these have the same digest.
func TestDigestTellsSimilarRequestsApart(t *testing.T) {
	digests := map[requestDigest]bool{}
	requests := []abi.Request{
		{},
		{Keys: []string{""}},
		{Keys: []string{"ab"}},
		{Keys: []string{"a", "b"}},
		{ServiceValues: []abi.Value{{}}},
		{ServiceValues: []abi.Value{{Present: true}}},
		{ServiceValues: []abi.Value{{Text: "a", Present: true}}},
		{ServiceValues: []abi.Value{{}, {Text: "a", Present: true}}},
		{ServiceValues: []abi.Value{{Text: "a", Present: true}, {}}},
		{Endpoints: []abi.Endpoint{{Values: make([]abi.Value, 1)}}},
		{Endpoints: []abi.Endpoint{{Values: make([]abi.Value, 2)}}},
		{Endpoints: []abi.Endpoint{{Values: []abi.Value{{Present: true}}}}},
		{Endpoints: []abi.Endpoint{{Pod: "a"}}},
		{Endpoints: []abi.Endpoint{{Zone: "a"}}},
		{Zones: make([]abi.Zone, 1)},
		{Zones: make([]abi.Zone, 2)},
		{Endpoints: make([]abi.Endpoint, 1)},
		{Endpoints: make([]abi.Endpoint, 2)},
	}
	for i := range requests {
		digests[new(digester).request(&requests[i])] = true
	}
	if len(digests) != len(requests) {
		t.Errorf("%d different digests, want %d", len(digests), len(requests))
	}
}

func TestStepDigestCoversRevisionSettingsAndWeights(t *testing.T) {
	d := new(digester)
	input := d.request(&abi.Request{})
	base := d.step(input, "1", "", []abi.Endpoint{{Weight: 1}})
	if d.step(requestDigest{}, "1", "", []abi.Endpoint{{Weight: 1}}) == base {
		t.Error("the request is not in the digest")
	}
	if d.step(input, "2", "", []abi.Endpoint{{Weight: 1}}) == base {
		t.Error("the revision is not in the digest")
	}
	if d.step(input, "1", "{}", []abi.Endpoint{{Weight: 1}}) == base {
		t.Error("the settings are not in the digest")
	}
	if d.step(input, "1", "", []abi.Endpoint{{Weight: 2}}) == base {
		t.Error("the weight is not in the digest")
	}
}

// change sets a field to another value. A field of a new kind needs a case here, and a place in the digest.
func change(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	if v.Type() == reflect.TypeFor[netip.AddrPort]() {
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("10.0.0.2:80")))
		return
	}
	if v.Type() == reflect.TypeFor[abi.Outcomes]() {
		v.Set(reflect.ValueOf(abi.Outcomes{Refused: 1}))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Int64, reflect.Int32:
		v.SetInt(v.Int() + 1)
	case reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		v.SetUint(v.Uint() + 1)
	case reflect.Struct:
		change(t, name, v.Field(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1))
	default:
		t.Fatalf("%s: no way to change a %s", name, v.Type())
	}
}
