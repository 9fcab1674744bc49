package planner

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// weightOfLabel gives each endpoint the capacity in the label of its Pod.
func weightOfLabel(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		resp.Results[i].Value = abi.One
		if values := req.Endpoints[i].Values; len(values) > 0 && values[0].Present {
			w, err := strconv.ParseUint(values[0].Text, 10, 16)
			if err != nil {
				return err
			}
			resp.Results[i].Value = abi.One * uint32(w)
		}
	}
	return nil
}

func podLabel(ns, name, weight string) model.Change {
	n := model.Name{Namespace: ns, Name: name}
	return model.Change{Kind: model.PodKind, Name: n, Pod: &model.Pod{Name: n, Labels: map[string]string{"weight": weight}}}
}

// podService is a Service of two endpoints, of which the first is a Pod.
func podService(ns, name, pod string, i int) []model.Change {
	n := model.Name{Namespace: ns, Name: name}
	return []model.Change{
		{Kind: model.ServiceKind, Name: n, Service: &model.Service{
			Name: n, Labels: map[string]string{"zoned": ""}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
		}},
		{Kind: model.SliceKind, Name: n, Slice: &model.EndpointSlice{
			Name: n, Service: n, Family: model.IPv4, Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
			Endpoints: []model.SliceEndpoint{{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), Ready: true, Serving: true, Pod: pod},
				{Addr: netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), Ready: true, Serving: true}},
		}},
	}
}

func TestChangeOfAPodPlansOnlyItsServices(t *testing.T) {
	p := New(testSettings(), func(string) (policy.Plugin, error) {
		return policytest.Plugin{Answer: weightOfLabel, Values: []string{"label:weight"}}, nil
	})
	var changes []model.Change
	const services = 1000
	for i := range services {
		ns := fmt.Sprint("ns", i%10)
		changes = append(changes, podService(ns, fmt.Sprint("s", i), fmt.Sprint("p", i/20), i)...) // two Services of a namespace share a Pod
		changes = append(changes, podLabel(ns, fmt.Sprint("p", i/20), "3"))
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	if r := p.PlanNow(now); r.Planned != services {
		t.Fatalf("%d planned", r.Planned)
	}
	at := func(i int) model.Name {
		return model.Name{Namespace: fmt.Sprint("ns", i%10), Name: fmt.Sprint("s", i)}
	}
	if got := weightOf(t, p, at(25)); got != 3 {
		t.Fatalf("weight %d", got)
	}
	calls := p.PluginCalls()
	plan := func(what string, want int, changes ...model.Change) {
		t.Helper()
		p.Apply(changes)
		if r := p.PlanNow(now); r.Planned != want {
			t.Errorf("%s: %d planned, want %d", what, r.Planned, want)
		}
	}
	plan("a label", 2, podLabel("ns5", "p1", "8"))
	if got := [2]uint16{weightOf(t, p, at(25)), weightOf(t, p, at(35))}; got != [2]uint16{8, 8} || p.PluginCalls() != calls+2 {
		t.Errorf("weights %v, %d calls", got, p.PluginCalls()-calls)
	}
	plan("a Pod of no Service", 0, podLabel("ns5", "other", "9"))
	plan("a Pod of the name in another namespace", 0, podLabel("bank", "p1", "9"))
	plan("the Service moves to another Pod", 1, podService("ns5", "s25", "other", 25)[1])
	if got := weightOf(t, p, at(25)); got != 9 {
		t.Errorf("weight %d of the other Pod", got)
	}
	plan("the old Pod", 1, podLabel("ns5", "p1", "7"))
	plan("the new Pod is gone", 1, model.Change{Kind: model.PodKind, Name: model.Name{Namespace: "ns5", Name: "other"}})
	if got := weightOf(t, p, at(25)); got != 1 {
		t.Errorf("weight %d without a Pod", got)
	}
	plan("the Services are gone", 2, model.Change{Kind: model.ServiceKind, Name: at(25)}, model.Change{Kind: model.ServiceKind, Name: at(35)})
	plan("their Pod", 0, podLabel("ns5", "p1", "6"))
	if n := len(p.values); n != services/2-1 {
		t.Errorf("%d Pods in the index, want %d", n, services/2-1)
	}
}

// TestChangeOfALabelPlansOnlyServicesThatSeeIt is about labels of Nodes and namespaces.
func TestChangeOfALabelPlansOnlyServicesThatSeeIt(t *testing.T) {
	plugin := policytest.Plugin{Answer: weightOfLabel, Values: []string{"node-label:weight", "namespace-label:env"}}
	p := New(testSettings(), func(string) (policy.Plugin, error) { return &plugin, nil })
	var changes []model.Change
	for i := range 40 {
		c := podService(fmt.Sprint("ns", i%4), fmt.Sprint("s", i), "", i)
		c[1].Slice.Endpoints[0].Node = fmt.Sprint("n", i/2)
		changes = append(changes, c...)
	}
	plain := podService("ns1", "plain", "", 40)
	plain[0].Service.Labels = nil // no policy
	changes = append(changes, plain...)
	node := func(name, weight, other string) model.Change {
		return model.Change{Kind: model.NodeKind, Name: model.Name{Name: name}, Node: &model.Node{Name: name, MilliCPU: int64(len(other)), Labels: map[string]string{"weight": weight}}}
	}
	namespace := func(name, env string) model.Change {
		return model.Change{Kind: model.NamespaceKind, Name: model.Name{Namespace: name}, Namespace: &model.Namespace{Name: name, Labels: map[string]string{"env": env}}}
	}
	p.Apply(append(changes, node("n3", "5", ""), model.Change{Kind: model.Synced}))
	p.PlanNow(time.Unix(1000, 0))
	at := func(i int) model.Name { return model.Name{Namespace: fmt.Sprint("ns", i%4), Name: fmt.Sprint("s", i)} }
	if got := [2]uint16{weightOf(t, p, at(6)), weightOf(t, p, at(8))}; got != [2]uint16{5, 1} {
		t.Fatalf("weights %v", got)
	}
	for _, test := range []struct {
		what           string
		change         model.Change
		planned, calls int
	}{
		{"a label of a Node", node("n3", "6", ""), 2, 2},
		{"something else of the Node", node("n3", "6", "x"), 0, 0},
		{"a Node without endpoints", node("n99", "6", ""), 0, 0},
		{"a Node of the name of a namespace", node("ns1", "6", ""), 0, 0},
		{"a namespace", namespace("ns1", "prod"), 10, 10},
		{"a namespace without Services", namespace("n3", "prod"), 0, 0},
		{"which labels of Nodes are read", model.Change{Kind: model.NodeLabelsKind, Read: []string{"other"}}, 40, 0},
		{"which labels of namespaces are read", model.Change{Kind: model.NamespaceLabelsKind, Read: []string{"env"}}, 40, 0},
		{"the label that plugins wait for", model.Change{Kind: model.NodeLabelsKind, Read: []string{"weight"}}, 40, 40},
	} {
		calls := p.PluginCalls()
		p.Apply([]model.Change{test.change})
		if r := p.PlanNow(time.Unix(1000, 0)); r.Planned != test.planned || p.PluginCalls()-calls != uint64(test.calls) {
			t.Errorf("%s: %d planned, %d calls, want %d and %d", test.what, r.Planned, p.PluginCalls()-calls, test.planned, test.calls)
		}
	}
	if got := weightOf(t, p, at(7)); got != 6 {
		t.Errorf("weight %d", got)
	}
	plugin.Values = nil
	p.PluginsReloaded()
	p.PlanNow(time.Unix(1001, 0))
	if len(p.values) != 0 {
		t.Errorf("%d objects in the index", len(p.values))
	}
}

// TestChangeOfLoadPlansOnlyItsService: and calls a plugin only if what it sees has changed.
func TestChangeOfLoadPlansOnlyItsService(t *testing.T) {
	values := map[string][]string{}
	p := New(testSettings(), func(string) (policy.Plugin, error) {
		return &policytest.Plugin{Answer: weightOfLabel, Values: values["of"]}, nil
	})
	values["of"] = []string{"load:eps"}
	var changes []model.Change
	for i := range 20 {
		changes = append(changes, podService(fmt.Sprint("ns", i%2), fmt.Sprint("s", i), "", i)...)
	}
	load := func(service string, values ...string) model.Change {
		l := &model.EndpointLoad{Values: map[netip.Addr]map[string]string{}}
		for i, v := range values {
			l.Values[netip.AddrFrom4([4]byte{10, 244 + byte(i), 0, 3})] = map[string]string{"eps": v, "cpu_utilization": fmt.Sprint(len(changes))}
		}
		return model.Change{Kind: model.LoadKind, Name: model.Name{Namespace: "ns1", Name: service}, Load: l}
	}
	p.Apply(append(changes, model.Change{Kind: model.LoadReadKind, Read: []string{"eps"}}, model.Change{Kind: model.Synced}))
	p.PlanNow(time.Unix(1000, 0))
	for _, test := range []struct {
		what           string
		change         model.Change
		planned, calls int
	}{
		{"load", load("s3", "4"), 1, 1},
		{"the same", load("s3", "4"), 1, 0},
		{"of no Service", load("s2", "5"), 0, 0},
		{"of another one", load("s5", "5"), 1, 0}, // by addresses that it does not have
		{"none any more", model.Change{Kind: model.LoadKind, Name: model.Name{Namespace: "ns1", Name: "s3"}}, 1, 1},
		{"which fields are read", model.Change{Kind: model.LoadReadKind, Read: []string{"eps", "x"}}, 20, 0},
	} {
		calls := p.PluginCalls()
		p.Apply([]model.Change{test.change})
		if r := p.PlanNow(time.Unix(1000, 0)); r.Planned != test.planned || p.PluginCalls()-calls != uint64(test.calls) {
			t.Errorf("%s: %d planned, %d calls, want %d and %d", test.what, r.Planned, p.PluginCalls()-calls, test.planned, test.calls)
		}
		if test.what == "the same" {
			if got := weightOf(t, p, test.change.Name); got != 4 {
				t.Errorf("weight %d", got)
			}
		}
	}
	values["of"] = nil
	p.PluginsReloaded()
	p.PlanNow(time.Unix(1001, 0))
	p.Apply([]model.Change{load("s3", "7")})
	if r := p.PlanNow(time.Unix(1001, 0)); r.Planned != 0 {
		t.Errorf("%d planned of a policy that sees no load", r.Planned)
	}
}

// TestPodsOfServicesWithoutKeysCostNothing: a plugin that declares no keys of Pods.
func TestPodsOfServicesWithoutKeysCostNothing(t *testing.T) {
	plugin := policytest.Plugin{Answer: weightOfLabel, Values: []string{"service-label:x"}}
	p := New(testSettings(), func(string) (policy.Plugin, error) { return &plugin, nil })
	p.Apply(append(podService("shop", "web", "web-1", 1), podLabel("shop", "web-1", "3"), model.Change{Kind: model.Synced}))
	p.PlanNow(time.Unix(1000, 0))
	p.Apply([]model.Change{podLabel("shop", "web-1", "4")})
	if r := p.PlanNow(time.Unix(1000, 0)); r.Planned != 0 || len(p.values) != 0 {
		t.Errorf("%d planned, %d Pods in the index", r.Planned, len(p.values))
	}
	// A reloaded plugin declares keys.
	plugin.Values = []string{"label:weight"}
	p.PluginsReloaded()
	p.PlanNow(time.Unix(1001, 0))
	if got := weightOf(t, p, model.Name{Namespace: "shop", Name: "web"}); got != 4 || len(p.values) != 1 {
		t.Errorf("weight %d, %d Pods in the index", got, len(p.values))
	}
}

// TestPodsAreWaitedForWithinABound is about a source that reads Pods on demand.
func TestPodsAreWaitedForWithinABound(t *testing.T) {
	p := New(testSettings(), func(string) (policy.Plugin, error) {
		return policytest.Plugin{Answer: weightOfLabel, Values: []string{"label:weight"}}, nil
	})
	web := model.Name{Namespace: "shop", Name: "web"}
	pods := func(s model.PodsState) model.Change {
		return model.Change{Kind: model.PodsReadKind, Name: web, Pods: s}
	}
	p.Apply(append(podService("shop", "web", "web-1", 1), model.Change{Kind: model.PodsOnDemandKind, Value: true}, model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	r := p.PlanNow(now)
	if p.PluginCalls() != 0 || len(r.Errors) > 0 || r.RequeueAt.IsZero() || r.RequeueAt.Sub(now) > time.Minute {
		t.Fatalf("%d calls, errors %v, again at %s", p.PluginCalls(), r.Errors, r.RequeueAt)
	}
	if x, err := p.Explain(web); err != nil || x.Pods == nil || *x.Pods != model.PodsPending {
		t.Errorf("explained as %+v, %v", x, err)
	}
	now = r.RequeueAt
	if p.PlanNow(now); p.PluginCalls() != 1 || weightOf(t, p, web) != 1 {
		t.Errorf("%d calls after the bound", p.PluginCalls())
	}
	p.Apply([]model.Change{podLabel("shop", "web-1", "5"), pods(model.PodsRead)})
	if r := p.PlanNow(now); r.Planned != 1 || weightOf(t, p, web) != 5 {
		t.Errorf("%d planned, weight %d", r.Planned, weightOf(t, p, web))
	}
}

func TestNodeIndexIsThePositionAmongReadyNodes(t *testing.T) {
	nodes := map[string]*model.Node{}
	for i, ready := range []bool{true, false, true, true} {
		nodes[fmt.Sprint("n", i)] = &model.Node{Ready: ready}
	}
	for own, want := range map[string][2]uint32{"n0": {0, 3}, "n1": {1, 3}, "n2": {1, 3}, "n3": {2, 3}, "z": {3, 3}} {
		if index, count := nodeIndex(nodes, own); [2]uint32{index, count} != want {
			t.Errorf("%s: %d of %d, want %v", own, index, count, want)
		}
	}
}

// TestFloodOfPodChangesDelaysNoOtherNamespace: a tenant changes the labels of all of its Pods between any two Plans.
func TestFloodOfPodChangesDelaysNoOtherNamespace(t *testing.T) {
	p := New(testSettings(), func(string) (policy.Plugin, error) {
		return policytest.Plugin{Answer: weightOfLabel, Values: []string{"label:weight"}}, nil
	})
	planInSteps(p)
	var changes []model.Change
	const services = 3000
	for i := range services {
		changes = append(changes, podService("flood", fmt.Sprint("s", i), fmt.Sprint("p", i), i)...)
	}
	changes = append(changes, podService("shop", "web", "web-1", services)...)
	p.Apply(append(changes, podLabel("shop", "web-1", "1"), model.Change{Kind: model.Synced}))
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	left := false
	for round := range 5 {
		changes = changes[:0]
		for i := range services {
			changes = append(changes, podLabel("flood", fmt.Sprint("p", i), fmt.Sprint(1+round)))
		}
		want := uint16(10 + round)
		p.Apply(append(changes, podLabel("shop", "web-1", fmt.Sprint(want))))
		r := p.PlanNow(now)
		left = left || r.Remaining > 0
		if got := weightOf(t, p, model.Name{Namespace: "shop", Name: "web"}); got != want {
			t.Errorf("round %d: weight %d, want %d, with %d Services remaining", round, got, want, r.Remaining)
		}
	}
	if !left {
		t.Error("every Plan has planned the whole flood: it shows nothing")
	}
}
