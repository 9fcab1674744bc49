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
	"Request.EndpointStates":   "the plugin's own answer",
	"Request.Settings":         "in the digest of the step, see TestStepDigestCoversWhatPluginsBeforeHaveWritten",
	"Request.ConnectionsAgeMS": "with Endpoint.Connections",
	"Request.OutcomesWindowMS": "with Endpoint.Outcomes",
	"Request.Groups":           "in the digest of the step, see TestStepDigestCoversWhatPluginsBeforeHaveWritten",
	"Endpoint.Capacity":        "in the digest of the step, see TestStepDigestCoversWhatPluginsBeforeHaveWritten",
	"Endpoint.Share":           "in the digest of the step, see TestStepDigestCoversWhatPluginsBeforeHaveWritten",
	"Endpoint.Group":           "in the digest of the step, see TestStepDigestCoversWhatPluginsBeforeHaveWritten",
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

func TestStepDigestCoversWhatPluginsBeforeHaveWritten(t *testing.T) {
	d := new(digester)
	input := d.request(&abi.Request{})
	request := func() *abi.Request { return &abi.Request{Groups: []uint32{1}, Endpoints: []abi.Endpoint{{}, {}}} }
	base := d.step(input, "1", "", request())
	for name, change := range map[string]func(in *requestDigest, revision, settings *string, r *abi.Request){
		"the request":         func(in *requestDigest, _, _ *string, _ *abi.Request) { *in = requestDigest{} },
		"the revision":        func(_ *requestDigest, revision, _ *string, _ *abi.Request) { *revision = "2" },
		"the settings":        func(_ *requestDigest, _, settings *string, _ *abi.Request) { *settings = "{}" },
		"a capacity":          func(_ *requestDigest, _, _ *string, r *abi.Request) { r.Endpoints[0].Capacity = 1 },
		"the other capacity":  func(_ *requestDigest, _, _ *string, r *abi.Request) { r.Endpoints[1].Capacity = 1 },
		"a share":             func(_ *requestDigest, _, _ *string, r *abi.Request) { r.Endpoints[0].Share = 1 },
		"a group":             func(_ *requestDigest, _, _ *string, r *abi.Request) { r.Endpoints[0].Group = 1 },
		"the part of a group": func(_ *requestDigest, _, _ *string, r *abi.Request) { r.Groups[0] = 2 },
		"the groups":          func(_ *requestDigest, _, _ *string, r *abi.Request) { r.Groups = append(r.Groups, 1) },
	} {
		in, revision, settings, r := input, "1", "", request()
		change(&in, &revision, &settings, r)
		if d.step(in, revision, settings, r) == base {
			t.Errorf("%s is not in the digest", name)
		}
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
