package main

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// TestPoliciesNamesObjectsThatAreNotInForce: on how many nodes, and why.
func TestPoliciesNamesObjectsThatAreNotInForce(t *testing.T) {
	fallen := api.ObjectState{Kind: "ServicePolicy", Namespace: "shop", Name: "web", Reason: "FallenBack", Message: "more connections failed"}
	list := &NodeStatuses{Nodes: []NodeStatus{
		{Node: "n1", Status: &api.Status{Objects: &api.Objects{Policies: 2, NotInForce: []api.ObjectState{fallen}}}},
		{Node: "n2", Status: &api.Status{Objects: &api.Objects{Policies: 2}}},
		{Node: "n3", Status: &api.Status{Objects: &api.Objects{Policies: 2, NotInForce: []api.ObjectState{fallen, {Kind: "ClusterServicePolicy", Name: "all", Reason: "Failing"}}}}},
	}}
	var out strings.Builder
	if err := printPolicies(&out, newPolicies(list), "wide"); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"object ServicePolicy/shop/web none 2 of 3: n1 n3 FallenBack: more connections failed", "object ClusterServicePolicy/all none 1 of 3: n3 Failing"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
