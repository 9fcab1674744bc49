package agent

import (
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// needyPlugin declares inputs.
type needyPlugin struct {
	policy.Plugin
	needs uint32
	keys  []string
}

func (p needyPlugin) Needs(string) uint32 { return p.needs }

func (p needyPlugin) Keys(string) []string { return p.keys }

func TestOnlyServicesOfPoliciesThatNeedInputsAskForThem(t *testing.T) {
	cfg := config.Default()
	cfg.Policies = []policy.Policy{
		{Name: "zoned", Steps: []policy.Step{{Plugin: "plain"}, {Plugin: "zoned"}}}, {Name: "plain", Steps: []policy.Step{{Plugin: "plain"}}},
		{Name: "failed", Steps: []policy.Step{{Plugin: "failed"}}},
	}
	cfg.DefaultPolicy = "plain"
	cfg.Allow = []policy.Allow{{Policies: []string{"plain", "failed"}}, {Namespaces: []string{"shop"}, Policies: []string{"zoned"}}}
	needs := SourceNeeds(cfg, func(name string) (policy.Plugin, error) {
		switch name {
		case "zoned":
			return needyPlugin{needs: abi.NeedNodes, keys: []string{"label:track", "service-annotation:cap", "service-label:x"}}, nil
		case "plain":
			return needyPlugin{needs: abi.NeedConnections, keys: []string{"label:app", "annotation:cap", "request:cpu"}}, nil
		}
		return nil, policy.ErrPending
	})(nil)
	all := kube.Needs{Nodes: true, Annotations: []string{"cap"},
		Pods: source.PodKeys{Labels: []string{"app", "track"}, Annotations: []string{"cap"}, Full: true}}
	shop := model.Name{Namespace: "shop", Name: "web"}
	if got := needs(&model.Service{Name: shop, Policy: "zoned"}); !reflect.DeepEqual(got, all) {
		t.Errorf("%+v, want %+v", got, all)
	}
	for annotation, want := range map[string]bool{"zoned": true, "plain": false, "": false, "failed": false,
		"unknown": true} { // it may have chosen zoned before
		if got := needs(&model.Service{Name: shop, Policy: annotation}); got.Nodes != want {
			t.Errorf("policy %q: %+v", annotation, got)
		}
	}
	for _, annotation := range []string{"zoned", "unknown"} { // the namespace may not choose zoned
		if got := needs(&model.Service{Policy: annotation}); got.Nodes {
			t.Errorf("policy %q of another namespace: %+v", annotation, got)
		}
	}
}
