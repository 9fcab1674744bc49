package plugins

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestStatsSurviveReload: a counter that falls looks like a restart to Prometheus.
func TestStatsSurviveReload(t *testing.T) {
	module, err := os.ReadFile(filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "p.wasm")
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	step := config.Step{Name: "p"}
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	cfg.Plugins = []config.Plugin{{Name: "p", File: file}}
	cfg.Policies = []config.Policy{{Name: "q", Plugins: []config.Step{step}}}
	set, err := Open(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(t.Context())
	load := func() {
		t.Helper()
		if swapped, err := set.Load(t.Context(), cfg, nil); err != nil || !swapped {
			t.Fatalf("swapped %t, %v", swapped, err)
		}
	}
	decide := func() {
		t.Helper()
		p, err := set.Get("p")
		if err != nil {
			t.Fatal(err)
		}
		req := wasm.Samples()[0].Request
		var resp abi.Response
		resp.Reset(len(req.Endpoints))
		if err := p.Decide(req, &resp); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, calls uint64, inUse bool) (fuel uint64) {
		t.Helper()
		all := set.Stats()
		if len(all) != 1 || all[0].Plugin != "p" || all[0].Calls != calls || (all[0].MemoryBytes > 0) != inUse {
			t.Fatalf("%s: %+v, want %d calls", what, all, calls)
		}
		return all[0].Fuel
	}
	write(module)
	load()
	decide()
	one := want("one call", 1, true)
	write(append(module, 0, 2, 1, 'x')) // with a custom section: another digest, the same code
	load()
	want("reloaded", 1, true)
	set.CloseRetired()
	want("the old one closed", 1, true)
	decide()
	if two := want("a call of the new one", 2, true); one == 0 || two != 2*one {
		t.Errorf("fuel %d after one call, %d after two", one, two)
	}
	cfg.Policies = nil
	if _, err := set.Load(t.Context(), cfg, nil); err != nil {
		t.Fatal(err)
	}
	set.CloseRetired()
	want("no longer in use", 2, false)
}
