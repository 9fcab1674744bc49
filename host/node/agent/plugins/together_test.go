package plugins

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// TestCallsTogetherHaveCheckedSettings: calls that are made together are checked as one is, and each has an error of its own.
func TestCallsTogetherHaveCheckedSettings(t *testing.T) {
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	cfg.Plugins = []config.Plugin{{Name: "p", File: filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm")}}
	cfg.Policies = []config.Policy{{Name: "q", Plugins: []config.Step{{Name: "p"}}}}
	set, p := openPlugin(t, cfg)
	ask := func(settings ...string) (calls []*policy.Call) {
		for _, text := range settings {
			c := &policy.Call{Plugin: p, Request: *wasm.SampleRequest(3)}
			c.Request.Settings.Text = text
			c.Response.Reset(3)
			calls = append(calls, c)
		}
		policy.DoAll(calls)
		return calls
	}
	calls := ask("", `{"unchecked": 1}`, "")
	for i, want := range []error{nil, errLoading, nil} {
		if !errors.Is(calls[i].Err, want) {
			t.Errorf("call %d: %v, want %v", i, calls[i].Err, want)
		}
	}
	set.Close(t.Context())
	for i, c := range ask("", "") {
		if !errors.Is(c.Err, policy.ErrPending) {
			t.Errorf("call %d after the plugin was replaced: %v", i, c.Err)
		}
	}
}
