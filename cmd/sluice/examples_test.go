package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/plugins/canary/canary"
	"github.com/sluice-proxy/sluice/plugins/capacity/capacity"
	"github.com/sluice-proxy/sluice/plugins/least-loaded/leastloaded"
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/plugins/locality/locality"
	"github.com/sluice-proxy/sluice/plugins/maglev/maglev"
	"github.com/sluice-proxy/sluice/plugins/outlier/outlier"
	"github.com/sluice-proxy/sluice/plugins/rebalance/rebalance"
	"github.com/sluice-proxy/sluice/plugins/subset/subset"
	"github.com/sluice-proxy/sluice/plugins/utilization/utilization"
	"github.com/sluice-proxy/sluice/sdk"
)

// Each bundled plugin that boutique/sluice.yaml does not use, and locality and lifecycle, has an example, with settings that it
// accepts, and is bound to a Service.
func TestExamplesOfBundledPlugins(t *testing.T) {
	bundled := map[string]func() sdk.Plugin{"locality": locality.New, "lifecycle": lifecycle.New, "canary": canary.New, "capacity": capacity.New,
		"least-loaded": leastloaded.New, "maglev": maglev.New, "outlier": outlier.New, "rebalance": rebalance.New, "subset": subset.New, "utilization": utilization.New}
	files, err := filepath.Glob("../../examples/boutique/policies/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../examples/boutique/policies/README.md")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".yaml"); !strings.Contains(string(readme), "`try "+name+" ") {
			t.Errorf("the README does not try %s", name)
		}
		cfg, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(cfg.Bindings) == 0 && cfg.DefaultPolicy == "" {
			t.Errorf("%s binds no policy", file)
		}
		for _, p := range cfg.Policies {
			for _, step := range slices.Concat(p.Plugins, p.Shadow) {
				name := step.Name
				used[name] = true
				if create := bundled[name]; create == nil {
					t.Errorf("%s: plugin %q is not in the list of this test", file, name)
				} else if err := create().Configure([]byte(step.Settings)); err != nil {
					t.Errorf("%s: plugin %s: %v", file, name, err)
				}
			}
		}
	}
	for name := range bundled {
		if !used[name] {
			t.Errorf("no example uses %s", name)
		}
	}
}
