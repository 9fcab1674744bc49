package agent

import (
	"testing"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestOnlyServicesOfPoliciesThatNeedNodesAskForThem(t *testing.T) {
	cfg := config.Default()
	cfg.Policies = []policy.Policy{{Name: "zoned"}, {Name: "plain"}}
	cfg.DefaultPolicy = "plain"
	needs := map[string]uint32{"zoned": abi.NeedNodes, "plain": abi.NeedPodNames}
	selects := servicesThatNeed(abi.NeedNodes, cfg, needs)
	for annotation, want := range map[string]bool{"zoned": true, "plain": false, "": false, "unknown": false} {
		if got := selects(&model.Service{Policy: annotation}); got != want {
			t.Errorf("policy %q: %t", annotation, got)
		}
	}
	if servicesThatNeed(abi.NeedNodes, cfg, map[string]uint32{"plain": abi.NeedPodNames}) != nil {
		t.Error("no policy needs Nodes, but the source is to read them")
	}
}
