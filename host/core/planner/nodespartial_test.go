package planner

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// nodeCount gives the first endpoint as many times the share of the others as there are Nodes in zones, plus one.
func nodeCount(req *abi.Request, resp *abi.Response) error {
	nodes := uint32(1)
	for _, z := range req.Zones {
		nodes += z.Nodes
	}
	for i := range resp.Results {
		resp.Results[i].Value = abi.One
	}
	resp.Results[0].Value = nodes * abi.One
	return nil
}

// TestPoliciesThatNeedNodesWaitForAllNodes: this node's own would be all of the demand otherwise.
func TestPoliciesThatNeedNodesWaitForAllNodes(t *testing.T) {
	for name, c := range map[string]struct {
		zone string
		want uint16
	}{
		"in zones":   {"a", 3},
		"in no zone": {"", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := testSettings()
			p := New(s, func(string) (policy.Plugin, error) {
				return policytest.Plugin{Answer: nodeCount, Inputs: abi.NeedNodes}, nil
			})
			at := func(name string) model.Change {
				return model.Change{Kind: model.NodeKind, Name: model.Name{Name: name}, Node: &model.Node{Name: name, Zone: c.zone}}
			}
			web := model.Name{Namespace: "shop", Name: "web"}
			changes := append(zonedService(web), at("n0"), model.Change{Kind: model.NodesPartialKind, Value: true}, model.Change{Kind: model.Synced})
			p.Apply(changes)
			now := time.Unix(1000, 0)
			step := p.PlanNow(now)
			if calls := p.PluginCalls(); calls != 0 || len(step.Errors) > 0 {
				t.Fatalf("%d calls, errors %v", calls, step.Errors)
			}
			p.Apply([]model.Change{at("n1"), {Kind: model.NodesPartialKind}})
			p.PlanNow(now)
			if got := weightOf(t, p, web); got != c.want {
				t.Errorf("weight %d with all Nodes, want %d", got, c.want)
			}
			p.Apply([]model.Change{{Kind: model.NodeKind, Name: model.Name{Name: "n1"}}, {Kind: model.NodesPartialKind, Value: true}})
			p.PlanNow(now.Add(time.Second))
			if got := weightOf(t, p, web); got != c.want || p.PluginCalls() != 1 {
				t.Errorf("weight %d once they are unknown again, want the last good %d; %d calls", got, c.want, p.PluginCalls())
			}
		})
	}
}

// zonedService has a policy and two endpoints.
func zonedService(name model.Name) []model.Change {
	return []model.Change{
		{Kind: model.ServiceKind, Name: name, Service: &model.Service{
			Name: name, Labels: map[string]string{"zoned": ""}, ClusterIPs: addrs("10.96.0.1"),
			Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
		}},
		{Kind: model.SliceKind, Name: model.Name{Namespace: "shop", Name: "web-1"}, Slice: &model.EndpointSlice{
			Name: model.Name{Namespace: "shop", Name: "web-1"}, Service: name, Family: model.IPv4,
			Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
			Endpoints: []model.SliceEndpoint{{Addr: addrs("10.244.0.1")[0], Ready: true, Serving: true}, {Addr: addrs("10.244.0.2")[0], Ready: true, Serving: true}},
		}},
	}
}

func weightOf(t *testing.T, p *Planner, name model.Name) uint16 {
	t.Helper()
	x, err := p.Explain(name)
	if err != nil || len(x.Decisions) != 1 || len(x.Decisions[0].Cluster.Weights) != 2 {
		t.Fatalf("%+v, %v", x, err)
	}
	return x.Decisions[0].Cluster.Weights[0]
}
