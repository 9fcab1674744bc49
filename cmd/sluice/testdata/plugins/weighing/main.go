// Command weighing is a plugin that gives each endpoint the capacity in a label of its Pod, and shows the other values that it
// sees in the reasons.
package main

import (
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(func() sdk.Plugin { return weighing{} }) }

func main() {}

type weighing struct{}

func (weighing) Configure([]byte) error { return nil }

func (weighing) Needs() sdk.Need { return sdk.NeedNodes | sdk.NeedPodNames }

func (weighing) Keys() []string {
	return []string{"label:weight", "service-annotation:example.com/mode", "annotation:example.com/capacity", "request:cpu"}
}

func (weighing) Decide(req *sdk.Request, resp *sdk.Response) error {
	text := func(id sdk.StringID, present bool) string {
		if !present {
			return "absent"
		}
		return req.Text(id)
	}
	index, nodes, _ := req.NodeIndex()
	mode := text(req.ServiceValue(0))
	for i := range req.NumEndpoints() {
		resp.SetCapacity(i, sdk.One)
		if w, err := strconv.Atoi(text(req.PodValue(i, 0))); err == nil {
			resp.SetCapacity(i, w*sdk.One)
		}
		if i < 8 { // fuel
			resp.SetReason(i, req.Text(req.Endpoint(i).Pod())+": mode "+mode+", capacity "+text(req.PodValue(i, 1))+
				", cpu "+text(req.PodValue(i, 2))+", node "+strconv.Itoa(index)+" of "+strconv.Itoa(nodes))
		}
	}
	return nil
}
