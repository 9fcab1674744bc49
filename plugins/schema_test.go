package plugins

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

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
	"github.com/sluice-proxy/sluice/sdk/manifest"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

var update = flag.Bool("update", false, "write the tables of settings into the READMEs")

func bundled() map[string]func() sdk.Plugin {
	return map[string]func() sdk.Plugin{
		"canary": canary.New, "capacity": capacity.New, "least-loaded": leastloaded.New, "lifecycle": lifecycle.New, "locality": locality.New,
		"maglev": maglev.New, "outlier": outlier.New, "rebalance": rebalance.New, "subset": subset.New, "utilization": utilization.New,
	}
}

func TestEveryPluginIsHere(t *testing.T) {
	mains, err := filepath.Glob("*/main.go")
	if err != nil || len(mains) != len(bundled()) {
		t.Errorf("%d plugins, this test has %d (%v)", len(mains), len(bundled()), err)
	}
}

func TestSettingsOfPluginsAreThoseOfTheirManifests(t *testing.T) {
	for name, create := range bundled() {
		t.Run(name, func(t *testing.T) { sdktest.CheckSchema(t, create) })
	}
}

// The table of settings in a README is that of the manifest: -update writes it.
func TestReadmesHaveTheSettingsOfTheManifest(t *testing.T) {
	for name := range bundled() {
		file, err := manifest.FindFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := manifest.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		readme := filepath.Join(name, "README.md")
		text, err := os.ReadFile(readme)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, found := bytes.Cut(text, []byte("## SETTINGS\n"))
		table := bytes.Index(rest, []byte("\n## "))
		if !found || table < 0 {
			t.Errorf("%s has no section SETTINGS", readme)
			continue
		}
		// Text after the table stays.
		_, after, _ := bytes.Cut(rest[:table], []byte("\n\n"))
		if len(after) > 0 {
			after = append([]byte("\n"), after...)
		}
		want := bytes.Join([][]byte{before, []byte("## SETTINGS\n" + m.Table()), after, rest[table:]}, nil)
		if bytes.Equal(want, text) {
			continue
		}
		if !*update {
			t.Errorf("%s: the settings are not those of %s: go test ./plugins -update", readme, file)
		} else if err := os.WriteFile(readme, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
