package plugins

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// settingsRig is a Set with one plugin, locality, in policies with other settings.
type settingsRig struct {
	*testing.T
	set    *Set
	cfg    *config.Config
	module []byte
}

func newSettingsRig(t *testing.T) *settingsRig {
	module, err := os.ReadFile(filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	r := &settingsRig{T: t, cfg: config.Default(), module: module}
	r.cfg.PluginCacheDir = testenv.PluginCache(t)
	r.cfg.Plugins = []config.Plugin{{Name: "p", File: filepath.Join(t.TempDir(), "p.wasm")}}
	r.write(module)
	if r.set, err = Open(t.Context(), r.cfg, Options{Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.set.Close(t.Context()) })
	return r
}

func (r *settingsRig) write(module []byte) {
	r.Helper()
	if err := os.WriteFile(r.cfg.Plugins[0].File, module, 0o644); err != nil {
		r.Fatal(err)
	}
}

// load loads the plugin with settings, one policy for each.
func (r *settingsRig) load(settings ...string) (changed bool, err error) {
	r.cfg.Policies = nil
	for i, text := range settings {
		r.cfg.Policies = append(r.cfg.Policies, config.Policy{Name: fmt.Sprint("q", i), Plugins: []config.Step{{Name: "p", Settings: config.Settings(text)}}})
	}
	return r.set.Load(r.Context(), r.cfg, nil)
}

func (r *settingsRig) decide(s abi.Settings) error {
	r.Helper()
	p, err := r.set.Get("p")
	if err != nil {
		return err
	}
	req := wasm.SampleRequest(3)
	req.Settings = s
	var resp abi.Response
	resp.Reset(3)
	return p.Decide(req, &resp)
}

const bad, refused = `{"demand":"beer"}`, `settings refused: demand: "beer" is none of "nodes", "cpu"`

func TestNewSettingsDoNotLoadTheModuleAgain(t *testing.T) {
	r := newSettingsRig(t)
	if changed, err := r.load(""); err != nil || !changed {
		t.Fatalf("changed %t, %v", changed, err)
	}
	first, _ := r.set.Get("p")
	before, _ := r.set.Memory()
	var settings []string
	for i := range 20 {
		settings = append(settings, fmt.Sprintf(`{"hold":"%ds"}`, 100+i))
	}
	if changed, err := r.load(settings...); err != nil || !changed {
		t.Fatalf("changed %t, %v", changed, err)
	}
	for _, text := range settings {
		if err := r.decide(abi.Settings{Text: text}); err != nil {
			t.Fatal(err)
		}
	}
	after, _ := r.set.Memory()
	if again, _ := r.set.Get("p"); again != first || after-before > 1<<20 {
		t.Errorf("loaded again: %t; %d bytes more", again != first, after-before)
	}
	if s := r.set.Stats()[0]; s.Instances != 1 || s.Settings.Handles != 20 {
		t.Errorf("%+v", s)
	}
	if changed, err := r.load(settings...); err != nil || changed {
		t.Errorf("without a change: %t, %v", changed, err)
	}
	if err := r.decide(abi.Settings{Text: ""}); !errors.Is(err, policy.ErrPending) {
		t.Errorf("settings that no policy has: %v", err)
	}
}

func TestBadSettingsAffectOnlyTheirPolicies(t *testing.T) {
	r := newSettingsRig(t)
	for _, what := range []string{"first load", "second load"} {
		if _, err := r.load("", bad); err == nil || !strings.HasPrefix(err.Error(), "plugin p: policies[1].plugins[0].settings: "+refused) {
			t.Errorf("%s: %v", what, err)
		}
		if err := r.decide(abi.Settings{}); err != nil {
			t.Errorf("%s: good settings: %v", what, err)
		}
		if err := r.decide(abi.Settings{Text: bad}); err == nil || !strings.Contains(err.Error(), refused) {
			t.Errorf("%s: bad settings: %v", what, err)
		}
	}
	own := abi.Settings{Text: `{"demand":"beer","hold":"7s"}`, Own: true}
	if err := r.decide(own); !errors.Is(err, abi.ErrSettings) {
		t.Errorf("settings of a Service: %v", err)
	}
}

// TestOneCauseNamesAllFields: what is wrong in several policies is reported for each.
func TestOneCauseNamesAllFields(t *testing.T) {
	r := newSettingsRig(t)
	var settings []string
	for i := range 12 {
		settings = append(settings, fmt.Sprintf(`{"demand":"beer","hold":"%ds"}`, 100+i))
	}
	for _, tt := range []struct {
		settings []string
		want     string
	}{
		{[]string{settings[0], "", settings[1]}, "plugin p: policies[0].plugins[0].settings, policies[2].plugins[0].settings: " + refused},
		{settings, "policies[8].plugins[0].settings, policies[9].plugins[0].settings and 2 more: " + refused},
	} {
		if _, err := r.load(tt.settings...); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), refused) != 1 {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}

// TestRevisionThatRefusesSettingsDoesNotReplaceAnother: the new module accepts none.
func TestRevisionThatRefusesSettingsDoesNotReplaceAnother(t *testing.T) {
	r := newSettingsRig(t)
	settings := `{"hold":"1m40s"}`
	if _, err := r.load("", settings); err != nil {
		t.Fatal(err)
	}
	old, _ := r.set.Get("p")
	other, err := os.ReadFile(filepath.Join(testenv.Plugins(t, "plugins/lifecycle"), "lifecycle.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	r.write(other)
	if changed, err := r.load("", settings); changed || err == nil || !strings.Contains(err.Error(), "(the previous revision stays in use)") {
		t.Fatalf("changed %t, %v", changed, err)
	}
	if p, _ := r.set.Get("p"); p != old {
		t.Error("replaced")
	}
	if err := r.decide(abi.Settings{Text: settings}); err != nil {
		t.Error(err)
	}
	if changed, err := r.load(""); err != nil || !changed {
		t.Errorf("without the settings: changed %t, %v", changed, err)
	}
	if p, _ := r.set.Get("p"); p == old {
		t.Error("not replaced")
	}
}
