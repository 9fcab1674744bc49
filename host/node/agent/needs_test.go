package agent

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
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
	cfg.Policies = []config.Policy{
		{Name: "zoned", Plugins: []config.Step{{Name: "plain"}, {Name: "zoned"}}}, {Name: "plain", Plugins: []config.Step{{Name: "plain"}}},
		{Name: "failed", Plugins: []config.Step{{Name: "failed"}}},
	}
	cfg.DefaultPolicy = "plain"
	cfg.Allow = []config.Allow{{Policies: []string{"plain", "failed"}}, {Namespaces: []string{"shop"}, Policies: []string{"zoned"}}}
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

// TestNeedsOfGuardedPoliciesAreThoseOfAllThatMayDecide: what is read does not change when a guard does.
func TestNeedsOfGuardedPoliciesAreThoseOfAllThatMayDecide(t *testing.T) {
	cfg := config.Default()
	cfg.HostnameOverride = "n1"
	step := func(plugin string) []config.Step { return []config.Step{{Name: plugin}} }
	cfg.Policies = []config.Policy{{Name: "trial", Plugins: step("zoned"), Guard: &config.Guard{FailedPercent: 2, Window: time.Minute}}, {Name: "rest", Plugins: step("labels")}}
	cfg.Bindings = []config.Binding{{Namespaces: []string{"shop"}, Policy: "trial", Nodes: &config.Nodes{Selector: &config.Selector{MatchExpressions: []config.Requirement{{Key: "pool", Operator: "Exists"}}}}}}
	cfg.DefaultPolicy = "rest"
	on := SourceNeeds(cfg, func(name string) (policy.Plugin, error) {
		if name == "zoned" {
			return needyPlugin{needs: abi.NeedNodes}, nil
		}
		return needyPlugin{keys: []string{"label:track"}}, nil
	})
	labels := source.PodKeys{Labels: []string{"track"}}
	for _, c := range []struct {
		what      string
		node      *model.Node
		namespace string
		want      kube.Needs
	}{
		{"in the pool", &model.Node{Name: "n1", Labels: map[string]string{"pool": ""}}, "shop", kube.Needs{Nodes: true, Pods: labels}},
		{"in the pool, another namespace", &model.Node{Name: "n1", Labels: map[string]string{"pool": ""}}, "lab", kube.Needs{Pods: labels}},
		{"not in the pool", &model.Node{Name: "n1"}, "shop", kube.Needs{Pods: labels}},
		{"unknown", nil, "shop", kube.Needs{Pods: labels}},
	} {
		if got := on(c.node)(&model.Service{Name: model.Name{Namespace: c.namespace}}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// TestModeIPVSNeedsNodesForAddressesThatMayBeTheirs: it must not add the address of a Node to this one.
func TestModeIPVSNeedsNodesForAddressesThatMayBeTheirs(t *testing.T) {
	at := []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	for mode, needed := range map[string]bool{config.ModeNFTables: false, config.ModeIPVS: true} {
		cfg := config.Default()
		cfg.Mode = mode
		needs := SourceNeeds(cfg, nil)(nil)
		for name, c := range map[string]struct {
			svc  model.Service
			want bool
		}{
			"ClusterIP": {model.Service{ClusterIPs: at}, false}, "external IP": {model.Service{ExternalIPs: at}, needed}, "load balancer IP": {model.Service{LoadBalancerIPs: at}, needed},
			"load balancer IP with ipMode Proxy": {model.Service{ReservedIPs: at}, false},
		} {
			if got := needs(&c.svc); got.Nodes != c.want {
				t.Errorf("mode %s: %s: %+v", mode, name, got)
			}
		}
	}
}
