package sdktest_test

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// sameZone multiplies the weight of endpoints in the zone of the node.
type sameZone struct {
	factor int64
}

func (p *sameZone) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) { f.Int("factor", &p.factor, 1, 100) })
}

func (p *sameZone) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Zone() == req.NodeZone() {
			resp.SetShare(i, int(p.factor)*e.Share())
		}
	}
	return nil
}

func ExampleRun() {
	req := sdktest.NewRequest("zone-a", nil,
		sdktest.Local("zone-a"), sdktest.Ready("zone-a"), sdktest.Ready("zone-b"), sdktest.Unchosen("zone-b"))
	resp, err := sdktest.Run(&sameZone{}, `{"factor": 4}`, req)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sdktest.Answers(resp))
	// Output: [4 4 1 0]
}

// In a chain each plugin sees the weights of the previous one.
func ExampleRunChain() {
	plugin, err := sdk.NewNativePlugin(func() sdk.Plugin { return &sameZone{} }, []byte(`{"factor": 3}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	req := sdktest.NewRequest("zone-a", nil, sdktest.Ready("zone-a"), sdktest.Ready("zone-b"))
	responses, err := sdktest.RunChain(req, plugin, plugin)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, resp := range responses {
		fmt.Println(sdktest.Answers(resp))
	}
	// Output:
	// [3 1]
	// [9 1]
}

// canaries gives canaries a tenth of the weight of the others, and none when they refuse connections.
type canaries struct{}

func (canaries) Configure([]byte) error { return nil }
func (canaries) Needs() sdk.Need        { return sdk.NeedOutcomes }
func (canaries) Keys() []string         { return []string{sdk.PodLabel("track")} }

func (canaries) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i := range req.NumEndpoints() {
		track, _ := req.PodValue(i, 0)
		switch o := req.Outcomes(i); {
		case req.Text(track) != "canary":
			resp.SetShare(i, 10*req.Endpoint(i).Share())
		case o.Refused > o.Answered:
			resp.SetShare(i, 0)
			resp.SetReason(i, "canary refuses connections")
		default:
			resp.SetReason(i, "canary")
		}
	}
	return nil
}

// A plugin sees outcomes and labels that it asks for.
func ExampleWatched() {
	canary := sdktest.Watched(sdktest.Ready("zone-a"), 90, 10, 0)
	canary.Values = sdktest.Values("canary")
	broken := sdktest.Watched(sdktest.Ready("zone-a"), 0, 50, 0)
	broken.Values = sdktest.Values("canary")
	req := sdktest.NewRequest("zone-a", nil, sdktest.Ready("zone-a"), canary, broken)
	req.Keys = []string{sdk.PodLabel("track")}
	resp, err := sdktest.Run(canaries{}, "", req)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sdktest.Answers(resp), resp.Results[2].Reason)
	// Output: [10 1 0] canary refuses connections
}
