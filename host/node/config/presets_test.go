package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func parsed(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(head+text), "/etc/sluice")
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

func TestPresetsAreValidPolicies(t *testing.T) {
	c := parsed(t, string(presetsFile)+"defaultPolicy: zone-aware\nallow: [{policies: [safe-rollout]}]\npluginDir: p\n"+
		"plugins: [{name: outlier, file: a}, {name: lifecycle, file: b}, {name: locality, file: c}, {name: canary, file: d}]\n")
	for i, q := range Presets() {
		if q.Preset = ""; !reflect.DeepEqual(c.Policies[i], q) {
			t.Errorf("%+v, want %+v", c.Policies[i], q)
		}
	}
}

// A preset needs no definition: its name is enough, wherever a policy is named.
func TestPresetsAreAttachedByTheirName(t *testing.T) {
	for _, text := range []string{
		"defaultPolicy: zone-aware", "bindings: [{namespaces: [shop], policy: zone-aware}]", "allow: [{policies: [zone-aware]}]",
		"policies: [{name: zone-aware, preset: zone-aware}]\ndefaultPolicy: zone-aware",
	} {
		c := parsed(t, text)
		if len(c.Policies) != 1 || c.Policies[0].Preset != "zone-aware" || Chain(c.Policies[0].Plugins) != "outlier → lifecycle → locality" || !c.Policies[0].IgnoreHints {
			t.Errorf("%s: %+v", text, c.Policies)
		}
		files := names(c.Plugins, func(m Plugin) string { return m.File })
		if want := []string{"/plugins/outlier.wasm", "/plugins/lifecycle.wasm", "/plugins/locality.wasm"}; !slices.Equal(files, want) {
			t.Errorf("%s: %v", text, files)
		}
		if set := c.PolicySet(); set.Policies["zone-aware"].Preset != "zone-aware" || len(set.Policies["zone-aware"].Steps) != 3 {
			t.Errorf("%s: %+v", text, set.Policies)
		}
	}
	if c := parsed(t, "pluginDir: modules\ndefaultPolicy: safe-rollout\nplugins: [{name: canary, file: mine.wasm}]"); !slices.Equal(
		names(c.Plugins, func(m Plugin) string { return m.File }), []string{"/etc/sluice/mine.wasm", "/etc/sluice/modules/outlier.wasm", "/etc/sluice/modules/lifecycle.wasm"}) {
		t.Errorf("%+v", c.Plugins)
	}
	if c := parsed(t, ""); len(c.Policies)+len(c.Plugins) > 0 {
		t.Errorf("without a name: %+v, %+v", c.Policies, c.Plugins)
	}
	own := parsed(t, "plugins: [{name: near, file: near.wasm}]\npolicies: [{name: zone-aware, plugins: [{name: near}]}]\ndefaultPolicy: zone-aware")
	if len(own.Policies) != 1 || Chain(own.Policies[0].Plugins) != "near" || len(own.Plugins) != 1 {
		t.Errorf("a policy of one's own with the name of a preset: %+v", own.Policies)
	}
}

func TestSettingsOfPresets(t *testing.T) {
	c := parsed(t, "policies: [{name: p, preset: zone-aware, settings: {locality: {hold: 1m}, lifecycle: {drain: {}}}, guard: {failedPercent: 2}}]\n"+
		"bindings: [{namespaces: [a], policy: p, settings: {locality: {demand: cpu}}}, {namespaces: [b], policy: zone-aware, settings: {outlier: {window: 20s}}}]")
	want := []Settings{"", `{"drain":{},"warm":{}}`, `{"hold":"1m"}`}
	for i, s := range c.Policies[0].Plugins {
		if s.Settings != want[i] {
			t.Errorf("%s: %s, want %s", s.Name, s.Settings, want[i])
		}
	}
	set := c.PolicySet()
	if got := set.Bindings[0].Applied.Steps[2].Settings; got != `{"demand":"cpu","hold":"1m"}` {
		t.Errorf("by binding: %s", got)
	}
	if got := set.Bindings[1].Applied.Steps; got[0].Settings != `{"window":"20s"}` || got[2].Settings != "" {
		t.Errorf("by binding, of the preset itself: %+v", got)
	}
	b, err := json.Marshal(c.Effective())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Parse(b, "/"); err != nil || !reflect.DeepEqual(c.Policies, again.Policies) || !reflect.DeepEqual(c.Plugins, again.Plugins) {
		t.Errorf("the effective configuration: %v\n%s", err, b)
	}
}

func TestErrorsOfPresets(t *testing.T) {
	for text, want := range map[string]string{
		"policies: [{name: p, preset: zone-awre}]":                                                       `policies[0].preset: no preset "zone-awre" (did you mean "zone-aware"?) (presets: zone-aware, safe-rollout)`,
		"defaultPolicy: zone-awre":                                                                       `defaultPolicy: no policy "zone-awre" (did you mean "zone-aware"?)`,
		"allow: [{policies: [safe-rolout]}]":                                                             `allow[0].policies[0]: no policy "safe-rolout" (did you mean "safe-rollout"?)`,
		"policies: [{name: p, preset: zone-aware, settings: {canary: {}}}]":                              "policies[0].settings: policy p has no plugin \"canary\" (plugins: outlier, lifecycle, locality)",
		"policies: [{name: p, preset: zone-aware, settings: {zone-spill: {}}}]":                          `it is plugin "locality" now`,
		"plugins: [{name: a, file: a}]\npolicies: [{name: p, preset: zone-aware, plugins: [{name: a}]}]": "policies[0].plugins: not those of preset zone-aware, outlier → lifecycle → locality",
		"plugins: [{name: a, file: a}]\npolicies: [{name: p, plugins: [{name: a}], settings: {a: {}}}]":  "policies[0].settings: preset required",
		"bindings: [{namespaces: [a], policy: zone-aware, settings: {canary: {}}}]":                      "bindings[0].settings[canary]: policy zone-aware has no plugin",
	} {
		if _, err := Parse([]byte(head+text), "/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
