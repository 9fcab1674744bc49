package planner

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// TestLabelsOfTheNodeChooseBindings: Services are planned again when another binding applies, and only then.
func TestLabelsOfTheNodeChooseBindings(t *testing.T) {
	settings := testSettings()
	settings.Policies.Bindings[0].Nodes = policy.Nodes{Selector: policy.Selector{{Key: "pool", Op: policy.In, Values: []string{"lab"}}}}
	settings.Policies.Allow = []policy.Allow{{Policies: []string{"zone"}}}
	p := New(settings, nativePlugins)
	name := model.Name{Namespace: "shop", Name: "web"}
	node := func(labels map[string]string) model.Change {
		return model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: &model.Node{Name: "n0", Labels: labels, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	}
	p.Apply([]model.Change{
		{Kind: model.ServiceKind, Name: name, Service: &model.Service{Name: name, Labels: map[string]string{"zoned": ""},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}},
		node(nil), {Kind: model.Synced},
	})
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	for i, c := range []struct {
		change  model.Change
		planned int
		want    string
	}{
		{node(map[string]string{"other": "x"}), 0, ""},
		{node(map[string]string{"pool": "lab"}), 1, "zone"},
		{node(map[string]string{"pool": "lab", "other": "x"}), 0, "zone"},
		{model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n1"}, Node: &model.Node{Name: "n1", Labels: map[string]string{"pool": "x"}}}, 0, "zone"},
		{node(map[string]string{"pool": "web"}), 1, ""},
		{node(map[string]string{"pool": "lab"}), 1, "zone"},
	} {
		p.Apply([]model.Change{c.change})
		r := p.PlanNow(now)
		e, err := p.Explain(name)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if e.Policy != nil {
			got = e.Policy.Name
		}
		if r.Planned != c.planned || got != c.want || len(e.NodeBindings) != 1 || e.NodeBindings[0].Applies != (c.want != "") {
			t.Errorf("%d: %d planned, policy %q, %+v; want %d, %q", i, r.Planned, got, e.NodeBindings, c.planned, c.want)
		}
	}
	svc := *p.cluster.Services[name]
	svc.Policy = "zone"
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: &svc}})
	p.PlanNow(now)
	if e, err := p.Explain(name); err != nil || e.Policy == nil || e.NodeBindings != nil {
		t.Errorf("a Service that has chosen its policy: %v, %+v", err, e)
	}
}
