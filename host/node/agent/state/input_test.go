package state

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func seenRequest() abi.Request {
	return abi.Request{
		NodeIndex: 2, NodeCount: 5, Zones: []abi.Zone{{Name: "a", Nodes: 3, Ready: 1, Serving: 2, Total: 4, MilliCPU: 8000}}, ConnectionsAgeMS: 1500,
		OutcomesWindowMS: 10_000, Keys: []string{"label:track", "service-label:tier", "annotation:b"}, ServiceValues: []abi.Value{{Text: "gold", Present: true}},
		Endpoints: []abi.Endpoint{{
			Addr: netip.MustParseAddrPort("10.0.0.1:80"), Conditions: abi.Ready | abi.Eligible | abi.Held, Pod: "web-0", Capacity: 3 * abi.One, Share: abi.One / 4, Group: 1, ReadySince: 1000,
			Connections: 7, Values: []abi.Value{{}, {Text: "x", Present: true}},
			Outcomes: abi.Outcomes{Attempts: 4, Answered: 1, Refused: 2, TotalAttempts: 40, Since: 2000},
		}},
	}
}

func TestInputHasEverythingThatThePluginAskedFor(t *testing.T) {
	s := policy.Seen{
		Plugin: "p", Settings: `{"a":1}`, Needs: abi.AllNeeds, Keys: []string{"annotation:b", "label:track", "service-label:tier"}, At: 5000, Request: seenRequest(),
	}
	got, err := json.Marshal(newInput(&s, time.UnixMilli))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"plugin":"p","at":"1970-01-01T00:00:05Z","settings":"{\"a\":1}","nodeIndex":2,"nodeCount":5,` +
		`"zones":[{"name":"a","ready":1,"serving":2,"total":4,"nodes":3,"milliCPU":8000}],"service":[{"key":"service-label:tier","value":"gold"}],` +
		`"connectionsAge":"1.5s","outcomesWindow":"10s","endpoints":[{"address":"10.0.0.1:80","conditions":["ready","eligible","held"],"capacity":3,"share":0.25,"group":1,` +
		`"readySince":"1970-01-01T00:00:01Z","pod":"web-0","connections":7,"outcomes":{"attempts":4,"answered":1,"refused":2,"unanswered":0,` +
		`"total":{"attempts":40,"answered":0,"refused":0,"unanswered":0},"since":"1970-01-01T00:00:02Z"},` +
		`"values":[{"key":"annotation:b","value":"x"},{"key":"label:track","value":null}]}]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What other plugins of the chain ask for is in the request too.
func TestInputHasNothingThatThePluginDidNotAskFor(t *testing.T) {
	s := policy.Seen{Plugin: "p", At: 5000, Request: seenRequest()}
	got, err := json.Marshal(newInput(&s, time.UnixMilli))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"plugin":"p","at":"1970-01-01T00:00:05Z","zones":[{"name":"a","ready":1,"serving":2,"total":4}],` +
		`"endpoints":[{"address":"10.0.0.1:80","conditions":["ready","eligible","held"],"capacity":3,"share":0.25,"group":1,"readySince":"1970-01-01T00:00:01Z"}]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestInputThatIsUnknownSaysSo(t *testing.T) {
	s := policy.Seen{Needs: abi.AllNeeds}
	s.Request.ConnectionsAgeMS, s.Request.NodeIndex = abi.NoAge, abi.NoIndex
	s.Request.Endpoints = []abi.Endpoint{{Connections: abi.ConnectionsUnknown}}
	in := newInput(&s, time.UnixMilli)
	if in.ConnectionsAge != "unknown" || in.OutcomesWindow != "unknown" || in.NodeCount != nil || in.Endpoints[0].Connections != nil || in.Endpoints[0].Outcomes != nil {
		t.Errorf("%+v", in)
	}
}

func TestInputIsBounded(t *testing.T) {
	long := strings.Repeat("x", 300_000)
	s := policy.Seen{Settings: long, Keys: []string{"label:a", "service-label:b"}}
	s.Request.Keys, s.Request.ServiceValues = s.Keys, []abi.Value{{Text: long, Present: true}}
	s.Request.Endpoints = slices.Repeat([]abi.Endpoint{{Values: s.Request.ServiceValues}}, 5000)
	in := newInput(&s, time.UnixMilli)
	if len(in.Endpoints) != maxInputEndpoints || in.Omitted != 5000-maxInputEndpoints || len(in.Settings) > 600 || len(*in.Service[0].Value) > 150 ||
		len(*in.Endpoints[0].Values[0].Value) > 150 {
		t.Errorf("%d endpoints, %d omitted, settings of %d bytes", len(in.Endpoints), in.Omitted, len(in.Settings))
	}
}

func TestEveryConditionHasAName(t *testing.T) {
	if 1<<(len(conditionNames)-1) != abi.Held || conditionNames[7] != "eligible" {
		t.Errorf("%q", conditionNames)
	}
}
