package plugins

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestNamespacesHaveInstancesOfTheirOwn(t *testing.T) {
	step := config.Step{Name: "p"}
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	cfg.Plugins = []config.Plugin{{Name: "p", File: filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm")}}
	cfg.Policies = []config.Policy{{Name: "q", Plugins: []config.Step{step}}}
	set, err := Open(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(t.Context())
	for _, c := range []struct {
		what      string
		isolation string
		oneIn     int
		loaded    bool
		instances int    // after a call for each of three namespaces
		repeats   uint64 // since the start
	}{
		{"shared", config.IsolateNone, 0, true, 1, 0},
		{"no change", config.IsolateNone, 0, false, 1, 0},
		{"repeats", config.IsolateNone, 1, true, 2, 3},
		{"namespaces", config.IsolateNamespace, 0, true, 3, 3},
		{"both", config.IsolateNamespace, 1, true, 4, 6},
	} {
		cfg.Plugins[0].Isolation, cfg.Plugins[0].RepeatOneIn, cfg.Plugins[0].Limits.Instances = c.isolation, c.oneIn, 4
		if loaded, err := set.Load(t.Context(), cfg, nil); err != nil || loaded != c.loaded {
			t.Fatalf("%s: loaded %t, %v", c.what, loaded, err)
		}
		set.CloseRetired()
		for _, namespace := range []string{"a", "b", "c"} {
			p, err := set.Get("p")
			if err != nil {
				t.Fatal(err)
			}
			req := wasm.SampleRequest(3)
			req.Namespace = namespace
			var resp abi.Response
			resp.Reset(3)
			if err := p.Decide(req, &resp); err != nil {
				t.Fatal(err)
			}
		}
		s := set.Stats()[0]
		if s.Instances != c.instances || s.Repeats.Equal != c.repeats || s.MemoryBytes < uint64(c.instances)<<20 {
			t.Errorf("%s: %+v", c.what, s)
		}
	}
}
