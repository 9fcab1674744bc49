package agent

import (
	"testing"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// needyPlugin declares inputs.
type needyPlugin struct {
	policy.Plugin
	needs uint32
}

func (p needyPlugin) Needs() uint32 { return p.needs }

func TestOnlyServicesOfPoliciesThatNeedInputsAskForThem(t *testing.T) {
	cfg := config.Default()
	cfg.Policies = []policy.Policy{
		{Name: "zoned", Steps: []policy.Step{{Plugin: "plain"}, {Plugin: "zoned"}}}, {Name: "plain", Steps: []policy.Step{{Plugin: "plain"}}},
		{Name: "failed", Steps: []policy.Step{{Plugin: "failed"}}},
	}
	cfg.DefaultPolicy = "plain"
	needs := SourceNeeds(cfg, func(name string) (policy.Plugin, error) {
		switch name {
		case "zoned":
			return needyPlugin{needs: abi.NeedNodes}, nil
		case "plain":
			return needyPlugin{needs: abi.NeedConnections}, nil
		}
		return nil, policy.ErrPending
	})
	for annotation, want := range map[string]bool{"zoned": true, "plain": false, "": false, "unknown": false, "failed": false} {
		if got := needs(&model.Service{Policy: annotation}); got.Nodes != want {
			t.Errorf("policy %q: %+v", annotation, got)
		}
	}
}
