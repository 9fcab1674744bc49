package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// keysPlugin declares keys.
type keysPlugin struct {
	policy.Plugin
	keys []string
}

func (p keysPlugin) Keys(string) []string { return p.keys }

func TestMissingPermissionForPodsIsAFindingIfAPluginNeedsThem(t *testing.T) {
	cfg := &config.Config{Policies: []config.Policy{{Name: "p", Plugins: []config.Step{{Name: "a"}, {Name: "b"}}}}}
	for _, test := range []struct {
		keys     []string
		resource string
		refused  []string
		err      error
		state    probe.State
		asked    bool
		text     string
	}{
		{keys: []string{abi.KeyServiceLabel + "tier", abi.KeyNodeLabel + "pool"}},
		{keys: []string{abi.KeyNamespaceLabel + "env"}, resource: "namespaces", refused: []string{"watch"}, asked: true, state: probe.Missing, text: "namespace-label:env"},
		{keys: []string{abi.KeyPodLabel + "track"}, resource: "pods", asked: true, state: probe.OK},
		{keys: []string{abi.KeyPodLabel + "track", abi.KeyPodCPU}, refused: []string{"list", "watch"}, resource: "pods", asked: true, state: probe.Missing, text: "a (label:track, request:cpu); b (label:track, request:cpu)"},
		{keys: []string{abi.KeyPodCPU}, err: errors.New("no API server"), resource: "pods", asked: true, state: probe.Unknown, text: "no API server"},
	} {
		asked := false
		got := CheckReads(t.Context(), cfg, func(string) (policy.Plugin, error) { return keysPlugin{keys: test.keys}, nil },
			func(_ context.Context, resource string) ([]string, error) {
				asked = resource == test.resource
				return test.refused, test.err
			})
		if asked != test.asked || (len(got) == 1) != asked {
			t.Errorf("%v: asked %t, %+v", test.keys, asked, got)
			continue
		}
		for _, f := range got {
			if f.State != test.state || f.Required || !strings.Contains(f.Found+f.Impact, test.text) {
				t.Errorf("%v: %+v", test.keys, f)
			}
		}
	}
}

// settingsPlugin declares a key of Pods with settings, and none without.
type settingsPlugin struct{ policy.Plugin }

func (settingsPlugin) Keys(settings string) []string {
	if settings == "" {
		return nil
	}
	return []string{abi.KeyPodCPU}
}

func TestSettingsOfABindingNeedPods(t *testing.T) {
	cfg := &config.Config{
		Policies: []config.Policy{{Name: "p", Plugins: []config.Step{{Name: "a"}}}},
		Bindings: []config.Binding{{Policy: "p", Settings: map[string]config.Settings{"a": `{"byCPU":true}`}}},
	}
	got := CheckReads(t.Context(), cfg, func(string) (policy.Plugin, error) { return settingsPlugin{}, nil },
		func(context.Context, string) ([]string, error) { return []string{"list"}, nil })
	if len(got) != 1 || got[0].State != probe.Missing {
		t.Errorf("%+v", got)
	}
}
