package plugins

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestSlowLoadDelaysNoOtherPlugin: the callback for the first plugin returns only when the second one is loaded, and the other
// way round.
func TestSlowLoadDelaysNoOtherPlugin(t *testing.T) {
	module, err := os.ReadFile(filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm"))
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
		cfg.Policies = append(cfg.Policies, config.Policy{Name: name, Plugins: []config.Step{{Name: name}}})
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

// Services learn that a plugin has failed to load, once for each reason: it is not "being loaded" for ever.
func TestFailedLoadIsPassedOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.wasm")
	cfg := config.Default()
	cfg.Plugins = []config.Plugin{{Name: "p", File: file}}
	cfg.Policies = []config.Policy{{Name: "p", Plugins: []config.Step{{Name: "p"}}}}
	set, err := Open(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(t.Context())
	if _, err := set.Get("p"); !errors.Is(err, policy.ErrPending) {
		t.Fatalf("before: %v", err)
	}
	for _, c := range []struct {
		content string
		passed  int
		want    string
	}{{"\x7fELF", 1, "not a WebAssembly module"}, {"\x7fELF", 0, "not a WebAssembly module"}, {"\x00asm\x01\x00\x00\x00", 1, "not a sluice plugin"}} {
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		passed := 0
		if changed, err := set.Load(t.Context(), cfg, func() { passed++ }); err == nil || OnlyLoading(err) || changed || passed != c.passed {
			t.Errorf("%q: changed %t, passed on %d times, want %d, error %v", c.content, changed, passed, c.passed, err)
		}
		if _, err := set.Get("p"); err == nil || errors.Is(err, policy.ErrPending) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v", c.content, err)
		}
	}
}

// A module is read, not mapped: whoever owns its file, or that of an image in the cache, cannot end sluice with it.
func TestModuleFileIsTruncatedWhileItIsInUse(t *testing.T) {
	module, err := os.ReadFile(filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "p.wasm")
	if err := os.WriteFile(file, module, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	cfg.Plugins = []config.Plugin{{Name: "p", File: file}}
	cfg.Policies = []config.Policy{{Name: "p", Plugins: []config.Step{{Name: "p"}}}}
	set, p := openPlugin(t, cfg)
	for i := range 20 {
		if err := os.Truncate(file, int64(i%2)*100); err != nil {
			t.Fatal(err)
		}
		req := wasm.SampleRequest(3)
		req.Now += int64(i)
		var resp abi.Response
		resp.Reset(len(req.Endpoints))
		if err := p.Decide(req, &resp); err != nil {
			t.Fatal(err)
		}
		set.ReleaseIdle()
	}
	if _, err := set.Load(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), "(the previous revision stays in use)") {
		t.Errorf("error %v", err)
	}
}

// openPlugin loads the plugins of a configuration, and returns the one with the name p. The set is closed at the end of the test.
func openPlugin(t *testing.T, cfg *config.Config) (*Set, policy.Plugin) {
	t.Helper()
	set, err := Open(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close(context.Background()) })
	if _, err := set.Load(t.Context(), cfg, nil); err != nil {
		t.Fatal(err)
	}
	p, err := set.Get("p")
	if err != nil {
		t.Fatal(err)
	}
	return set, p
}

// TestPluginsFollowASwitchOfTheMode: what a mode cannot give, a plugin that needs it is not called without, whichever mode it was
// loaded in.
func TestPluginsFollowASwitchOfTheMode(t *testing.T) {
	gives := func(outcomes bool) func() plan.Caps { return func() plan.Caps { return plan.Caps{Outcomes: outcomes} } }
	modes := dataplane.Modes{{Name: "counts", Caps: gives(true)}, {Name: "counts nothing", Caps: gives(false)}}
	const reason = "mode counts nothing does not count the outcomes of connections"
	for _, order := range [][]string{{"counts", "counts nothing", "counts"}, {"counts nothing", "counts", "counts nothing"}} {
		cfg := config.Default()
		cfg.PluginCacheDir = testenv.PluginCache(t)
		for _, name := range []string{"outlier", "locality"} {
			cfg.Plugins = append(cfg.Plugins, config.Plugin{Name: name, File: filepath.Join(testenv.Plugins(t, "plugins/"+name), name+".wasm")})
			cfg.Policies = append(cfg.Policies, config.Policy{Name: name, Plugins: []config.Step{{Name: name}}})
		}
		set, err := Open(t.Context(), cfg, Options{Modes: modes, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close(t.Context())
		for i, mode := range order {
			cfg.Mode = mode
			passed := atomic.Int32{}
			_, err := set.Load(t.Context(), cfg, func() { passed.Add(1) })
			if refused := err != nil && strings.Contains(err.Error(), reason); refused != (mode != "counts") || passed.Load() == 0 {
				t.Errorf("%s, load %d: %v; the engine was told %d times", mode, i, err, passed.Load())
			}
			for name, want := range map[string]bool{"outlier": mode == "counts", "locality": true} {
				p, err := set.Get(name)
				if err == nil {
					var resp abi.Response
					err = p.Decide(wasm.SampleRequest(2), &resp)
				}
				if called := err == nil; called != want || !want && !strings.Contains(err.Error(), reason) {
					t.Errorf("%s, load %d: %s: %v", mode, i, name, err)
				}
			}
		}
	}
}
