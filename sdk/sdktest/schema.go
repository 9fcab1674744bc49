package sdktest

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// CheckSchema checks that a plugin, a sdk.Describer, and the schema in its manifest agree: it takes the defaults, and refuses the
// values that the schema refuses, and names that the schema does not have. It does not see the ranges of items of lists and maps.
func CheckSchema(t *testing.T, create func() sdk.Plugin) {
	t.Helper()
	d, ok := create().(sdk.Describer)
	if !ok {
		t.Fatal("the plugin has no method Manifest")
	}
	m, err := manifest.ParseFile([]byte(d.Manifest()))
	if err != nil {
		t.Fatal(err)
	}
	good := m.Example()
	try := func(settings map[string]json.RawMessage) (string, error) {
		text, err := json.Marshal(settings)
		if err != nil {
			t.Fatal(err)
		}
		return string(text), create().Configure(text)
	}
	if text, err := try(good); err != nil || len(m.CheckSettings([]byte(text))) > 0 {
		t.Errorf("the defaults, %s: the plugin says %v, the schema %v", text, err, m.CheckSettings([]byte(text)))
	}
	for i := range m.Settings {
		s := &m.Settings[i]
		inside, outside := s.Samples()
		for _, v := range inside {
			settings := maps.Clone(good)
			settings[s.Name] = v
			// What depends on several fields is not the schema's.
			if text, err := try(settings); err != nil && strings.Contains(err.Error(), s.Name+": ") && strings.Contains(err.Error(), " is not ") {
				t.Errorf("the schema permits %s, the plugin says: %v", text, err)
			}
		}
		for _, v := range outside {
			settings := maps.Clone(good)
			settings[s.Name] = v
			if text, err := try(settings); err == nil {
				t.Errorf("the plugin takes %s, which the schema refuses", text)
			}
		}
	}
	settings := maps.Clone(good)
	settings["no-such-setting"] = json.RawMessage("1")
	if text, err := try(settings); err == nil {
		t.Errorf("the plugin takes %s, which the schema does not have", text)
	}
}
