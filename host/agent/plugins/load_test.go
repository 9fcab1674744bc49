package plugins

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/policy"
)

// TestSlowLoadDelaysNoOtherPlugin: the callback for the first plugin returns only when the second one is loaded, and the other
// way round.
func TestSlowLoadDelaysNoOtherPlugin(t *testing.T) {
	module, err := os.ReadFile(filepath.Join(testenv.Plugins(t, "plugins/zone-spill"), "zone-spill.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	for _, name := range []string{"a", "b"} {
		file := filepath.Join(t.TempDir(), name+".wasm")
		if err := os.WriteFile(file, module, 0o644); err != nil {
			t.Fatal(err)
		}
		cfg.Plugins = append(cfg.Plugins, config.Plugin{Name: name, File: file})
		cfg.Policies = append(cfg.Policies, policy.Policy{Name: name, Steps: []policy.Step{{Plugin: name}}})
	}
	set, err := Open(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(t.Context())
	arrived := make(chan struct{})
	meet := func() {
		select {
		case arrived <- struct{}{}:
		case <-arrived:
		case <-t.Context().Done():
			t.Error("the plugins are loaded one after the other")
		}
	}
	if swapped, err := set.Load(t.Context(), cfg, meet); err != nil || !swapped {
		t.Fatalf("swapped %t, %v", swapped, err)
	}
}
