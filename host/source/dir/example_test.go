package dir

import (
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestExampleHasNoProblems compares examples/boutique with its README.
func TestExampleHasNoProblems(t *testing.T) {
	snap, problems, err := Load("../../../examples/boutique/manifests")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	if len(snap.Services) != 15 || len(snap.Nodes) != 6 {
		t.Errorf("%d Services and %d Nodes, want 15 and 6", len(snap.Services), len(snap.Nodes))
	}
	zones := map[string]int{}
	for _, s := range snap.Slices[model.Name{Namespace: "shop", Name: "catalog"}] {
		for _, e := range s.Endpoints {
			zones[e.Zone]++
			node := snap.Nodes[e.Node]
			if node == nil || node.Zone != e.Zone || !node.PodCIDRs[0].Contains(e.Addr) {
				t.Errorf("%s is not a Pod of %s in %s", e.Addr, e.Node, e.Zone)
			}
		}
	}
	if zones["zone-a"] != 3 || zones["zone-b"] != 3 || zones["zone-c"] != 3 {
		t.Errorf("catalog's endpoints by zone: %v, want three in each", zones)
	}
	for name, want := range map[string]func(*model.Service) bool{
		"frontend":        func(s *model.Service) bool { return s.Ports[0].NodePort == 30080 && len(s.ClusterIPs) == 2 },
		"cart":            func(s *model.Service) bool { return s.Affinity.Hours() == 1 },
		"shipping":        func(s *model.Service) bool { return s.ExternalLocal && s.Ports[0].NodePort != 0 },
		"telemetry":       func(s *model.Service) bool { return s.InternalLocal && s.Ports[0].Protocol == model.UDP },
		"recommendations": func(s *model.Service) bool { return s.Policy == "zone-trial" },
	} {
		if s := snap.Services[model.Name{Namespace: "shop", Name: name}]; s == nil || !want(s) {
			t.Errorf("Service %s: %+v", name, s)
		}
	}
	if n := len(snap.Slices[model.Name{Namespace: "shop", Name: "ledger"}]); n != 1 {
		t.Errorf("%d mirrored slices of ledger, want 1", n)
	}
	ads := 0
	for _, s := range snap.Slices[model.Name{Namespace: "shop", Name: "ads"}] {
		ads += len(s.Endpoints)
	}
	if ads != 0 {
		t.Errorf("ads has %d endpoints, want none", ads)
	}
}
