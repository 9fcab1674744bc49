package sdk_test

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// slowStart gives an endpoint half its weight for a while after it became ready.
type slowStart struct {
	seconds int64
}

func (p *slowStart) Configure(settings []byte) error {
	p.seconds = 30 // the default
	return sdk.ParseSettings(settings, func(f *sdk.Fields) { f.Int("seconds", &p.seconds, 1, 3600) })
}

func (p *slowStart) Decide(req *sdk.Request, resp *sdk.Response) error {
	window := sdk.Duration(p.seconds) * sdk.Second
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		age := req.Now().Sub(e.ReadySince())
		if e.ReadySince() == 0 || age >= window {
			resp.SetShare(i, 2*e.Share())
			continue
		}
		resp.SetReason(i, "recently ready")
		resp.RequeueAfter(window - age)
	}
	return nil
}

// A plugin is a type with two methods. Its package main registers it in an init function:
//
//	func init() { sdk.Register(func() sdk.Plugin { return &slowStart{} }) }
//
//	func main() {}
func ExamplePlugin() {
	recent := sdktest.Ready("zone-a")
	recent.ReadySince = sdktest.Now - 20_000
	req := sdktest.NewRequest("zone-a", nil, sdktest.Ready("zone-a"), recent)
	resp, err := sdktest.Run(&slowStart{}, `{"seconds": 60}`, req)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sdktest.Answers(resp), resp.Results[1].Reason)
	fmt.Println("again after", resp.RequeueAfter)
	// Output:
	// [2 1] recently ready
	// again after 40s
}

// stage has the fields of an object in a list.
type stage struct{ weight, seconds int64 }

func (s *stage) fields(f *sdk.Fields) {
	f.Require("weight")
	f.Int("weight", &s.weight, 0, 100)
	f.Int("seconds", &s.seconds, 1, 3600)
}

func ExampleParseSettings() {
	percent, stages := int64(10), []stage(nil) // the defaults
	fields := func(f *sdk.Fields) {
		f.Int("percent", &percent, 1, 100)
		sdk.List(f, "stages", &stages, (*stage).fields)
	}
	fmt.Println(sdk.ParseSettings([]byte(`{"percent": 50, "stages": [{"weight": 20}]}`), fields), percent, stages)
	fmt.Println(sdk.ParseSettings([]byte(`{"percents": 50}`), fields))
	fmt.Println(sdk.ParseSettings([]byte(`{"percent": "50"}`), fields))
	fmt.Println(sdk.ParseSettings([]byte(`{"stages": [{"weight": 50}, {"weight": 101}]}`), fields))
	fmt.Println(sdk.ParseSettings([]byte(`{"stages": [{}]}`), fields))
	// Output:
	// <nil> 50 [{20 0}]
	// unknown field "percents"
	// percent: want an integer, got a string
	// stages[1].weight: 101 is not 0 to 100
	// stages[0].weight: missing
}

// warmUp keeps the default weights for a minute after it first saw a Service port. Its state is that time.
type warmUp struct{}

func (warmUp) Configure([]byte) error { return nil }

func (warmUp) Decide(req *sdk.Request, resp *sdk.Response) error {
	since := int64(req.Now())
	if n, err := strconv.ParseInt(string(req.State()), 10, 64); err == nil {
		since = n
	}
	resp.SetState(strconv.AppendInt(nil, since, 10))
	if age := req.Now().Sub(sdk.Time(since)); age < sdk.Minute {
		resp.RequeueAfter(sdk.Minute - age)
		return nil
	}
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Local() {
			resp.SetShare(i, 3*e.Share())
		}
	}
	return nil
}

// The state comes back in the next request about the same Service port and pool, also after a restart of sluice.
func ExampleResponse_SetState() {
	req := sdktest.NewRequest("zone-a", nil, sdktest.Local("zone-a"), sdktest.Ready("zone-a"))
	for range 2 {
		resp, err := sdktest.Run(warmUp{}, "", req)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(sdktest.Answers(resp), resp.RequeueAfter)
		req.State = resp.State
		req.Now += time.Minute.Milliseconds()
	}
	// Output:
	// [1 1] 1m0s
	// [3 1] 0s
}
