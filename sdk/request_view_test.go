package sdk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// seen is what a plugin sees of a request: a second implementation of abi.View.
func seen(req *abi.Request, v abi.View) *abi.Request {
	out := *req
	out.Keys, out.ServiceValues, out.Zones, out.Endpoints = v.Keys, nil, slices.Clone(req.Zones), slices.Clone(req.Endpoints)
	values := func(keys []string, of []abi.Value, pods bool) (picked []abi.Value) {
		by := map[string]abi.Value{}
		for _, k := range keys {
			if abi.IsEndpointKey(k) == pods {
				by[k], of = of[0], of[1:]
			}
		}
		for _, k := range v.Keys {
			if abi.IsEndpointKey(k) == pods {
				picked = append(picked, by[k])
			}
		}
		return picked
	}
	out.ServiceValues = values(req.Keys, req.ServiceValues, false)
	if v.Needs&abi.NeedNodes == 0 {
		out.NodeIndex, out.NodeCount = abi.NoIndex, 0
		for i := range out.Zones {
			out.Zones[i].Nodes, out.Zones[i].MilliCPU = 0, 0
		}
	}
	if v.Needs&abi.NeedConnections == 0 {
		out.ConnectionsAgeMS = abi.NoAge
	}
	if v.Needs&abi.NeedOutcomes == 0 {
		out.OutcomesWindowMS = 0
	}
	for i := range out.Endpoints {
		e := &out.Endpoints[i]
		e.Values = values(req.Keys, e.Values, true)
		if v.Needs&abi.NeedConnections == 0 {
			e.Connections = abi.ConnectionsUnknown
		}
		if v.Needs&abi.NeedOutcomes == 0 {
			e.Outcomes = abi.Outcomes{}
		}
		if v.Needs&abi.NeedPodNames == 0 {
			e.Pod = ""
		}
	}
	return &out
}

func TestPluginsSeeOnlyWhatTheyNeedAndDeclare(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	var e abi.Encoder
	for round := range 2000 {
		req := random(rnd)
		v := abi.View{Settings: abi.NoSettings, Needs: rnd.Uint32() & abi.AllNeeds}
		for _, i := range rnd.Perm(len(someKeys))[:rnd.IntN(len(someKeys)+1)] {
			v.Keys = append(v.Keys, someKeys[i])
		}
		var view Request
		if err := viewOf(&view, e.AppendRequest(nil, req, v)); err != nil {
			t.Fatal(err)
		}
		if got, want := read(&view, v.Keys), seen(req, v); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Fatalf("round %d, %+v:\ngot  %+v\nwant %+v", round, v, got, want)
		}
	}
}

func TestIndexOfAKeyOutOfRangePanics(t *testing.T) {
	var e abi.Encoder
	var view Request
	req := &abi.Request{Endpoints: make([]abi.Endpoint, 2), Keys: someKeys}
	if err := viewOf(&view, e.AppendRequest(nil, req, abi.View{Keys: []string{"label:a", "service-label:a"}, Needs: abi.NeedOutcomes})); err != nil {
		t.Fatal(err)
	}
	if _, present := view.PodValue(1, 0); present {
		t.Error("the Pod has a value")
	}
	if _, present := view.ServiceValue(0); present {
		t.Error("the Service has a value")
	}
	for want, f := range map[string]func(){
		"endpoint 2 of 2":         func() { view.PodValue(2, 0) },
		"endpoint -1 of 2":        func() { view.PodValue(-1, 0) },
		"key of Pods 1 of 1":      func() { view.PodValue(0, 1) },
		"key of Pods -1 of 1":     func() { view.PodValue(0, -1) },
		"key of Services 1 of 1":  func() { view.ServiceValue(1) },
		"key of Services -1 of 1": func() { view.ServiceValue(-1) },
		"endpoint 3 of 2":         func() { view.Outcomes(3) },
		"endpoint -2 of 2":        func() { view.TotalOutcomes(-2) },
	} {
		panicsWith(t, "sdk: index out of range: "+want, f)
	}
}
