package plugintest_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	host "github.com/sluice-proxy/sluice/host/plugin/plugintest"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
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
	"github.com/sluice-proxy/sluice/sdk/scenario"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

var scenarioCount = flag.Int("scenarios", 6, "random scenarios of each plugin; with -short, a third")

func scenarios() int {
	if testing.Short() {
		return (*scenarioCount + 2) / 3
	}
	return *scenarioCount
}

// bundled are the bundled plugins, with settings for random scenarios.
var bundled = map[string]struct {
	create   func() sdk.Plugin
	settings []string
}{
	"canary":       {canary.New, []string{`{"by": "label:track", "groups": [{"value": "canary", "percent": 5}]}`, `{"by": "label:track", "groups": [{"value": "canary", "percent": 50}]}`}},
	"capacity":     {capacity.New, []string{`{"from": "annotation:example.com/capacity"}`, `{"from": "request:cpu"}`}},
	"least-loaded": {leastloaded.New, []string{"", `{"smoothingPercent": 50, "maxChangePercent": 100, "tolerancePercent": 0}`}},
	"lifecycle": {lifecycle.New, []string{
		"", `{"warm": {"duration": "2m", "aggression": 1.7}}`, `{"drain": {"stages": [{"percent": 50, "duration": "7s"}], "resetAfter": "5s"}}`,
	}},
	"locality": {locality.New, []string{
		"", `{"demandByZone": {"zone-a": 3, "zone-b": 1, "zone-x": 2}}`, `{"mode": "priority", "by": "label:track", "groups": [{"values": ["stable"]}, {"values": ["canary", ""]}]}`,
	}},
	"maglev":      {maglev.New, []string{""}},
	"outlier":     {outlier.New, []string{"", `{"maxEjectionPercent": 30, "panicPercent": 30}`}},
	"rebalance":   {rebalance.New, []string{"", `{"duration": "24h", "delay": "0s", "minConnections": 1, "tolerancePercent": 1}`}},
	"subset":      {subset.New, []string{`{"endpoints": 2}`, `{"endpoints": 4}`}},
	"utilization": {utilization.New, []string{"", `{"from": "load:utilization/queue", "hold": "0s"}`}},
}

// sandbox loads modules of the bundled plugins.
type sandbox struct {
	dir  string
	host *wasm.Host
}

func newSandbox(t *testing.T) *sandbox {
	var packages []string
	for name := range bundled {
		packages = append(packages, "plugins/"+name)
	}
	h, err := wasm.New(t.Context(), wasm.Options{CacheDir: testenv.PluginCache(t), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(t.Context()) })
	return &sandbox{testenv.Plugins(t, packages...), h}
}

// loader returns a Loader of a module.
func (s *sandbox) loader(t *testing.T, name string) host.Loader {
	module, err := os.ReadFile(filepath.Join(s.dir, name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.host.Open(t.Context(), name, module, wasm.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	checked := map[string]bool{}
	return func(_, settings string) (policy.Plugin, error) {
		p.Reset()
		if !checked[settings] {
			if _, err := p.Check(t.Context(), settings); err != nil {
				return nil, err
			}
			checked[settings] = true
		}
		return p, nil
	}
}

func parse(t *testing.T, file string) *scenario.File {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := scenario.Parse(file, text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestScenariosOfTheBundledPlugins runs their scenarios in the sandbox; the tests of the plugins run them natively. Their READMEs
// show them.
func TestScenariosOfTheBundledPlugins(t *testing.T) {
	box := newSandbox(t)
	for name := range bundled {
		files, err := filepath.Glob("../../../plugins/" + name + "/testdata/*.scenario")
		if err != nil || len(files) == 0 {
			t.Errorf("plugin %s has no scenario (%v)", name, err)
		}
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				f := parse(t, file)
				readme, err := os.ReadFile("../../../plugins/" + name + "/README.md")
				if err != nil {
					t.Fatal(err)
				}
				result, err := scenariotest.Run(f, host.New(box.loader(t, name)), nil)
				if err == nil {
					err = result.Err()
				}
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(string(readme), string(result.Format())) {
					t.Errorf("plugins/%s/README.md does not show it", name)
				}
			})
		}
	}
}

// TestSandboxAndNativeAgreeOnRandomScenarios compares the two implementations: planner and sandbox, and sdk/sdktest.
func TestSandboxAndNativeAgreeOnRandomScenarios(t *testing.T) {
	box := newSandbox(t)
	for name, p := range bundled {
		t.Run(name, func(t *testing.T) {
			load := box.loader(t, name)
			for seed := range scenarios() {
				text := randomScenario(rand.New(rand.NewPCG(uint64(seed), 14)), p.settings, 60)
				f, err := scenario.Parse("random", []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				native, err := scenariotest.Run(f, sdktest.NewEngine(p.create), nil)
				if err != nil {
					t.Fatalf("seed %d: natively: %v\n%s", seed, err, numbered(text))
				}
				if f, err = scenario.Parse("random", native.Format()); err != nil {
					t.Fatal(err)
				}
				sandboxed, err := scenariotest.Run(f, host.New(load), nil)
				if err == nil {
					err = sandboxed.Err()
				}
				if err != nil {
					t.Fatalf("seed %d: native (-), sandbox (+): %v\n%s", seed, err, numbered(string(native.Format())))
				}
			}
		})
	}
}

func numbered(text string) (out string) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		out += fmt.Sprintf("%4d %s", n, line)
	}
	return out
}
