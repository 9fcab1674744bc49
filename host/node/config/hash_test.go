package config

import (
	"strings"
	"testing"
)

func TestHashIsOfWhatTheConfigurationSays(t *testing.T) {
	hash := func(text string) string {
		t.Helper()
		c, err := Parse([]byte(text), "/etc/sluice")
		if err != nil {
			t.Fatal(err)
		}
		return c.Hash()
	}
	before := hash(full)
	if len(before) != hashDigits {
		t.Fatalf("hash %q", before)
	}
	for what, text := range map[string]string{
		"comments":      "# one\n" + full + "# two\n",
		"white space":   strings.ReplaceAll(full, "period: 5s", "period:    5s"),
		"settings":      strings.Replace(full, "b: 9007199254740993, a: 0.5}", "a: 0.5, b: 9007199254740993}", 1),
		"another node":  strings.Replace(full, "hostnameOverride: node-a1", "hostnameOverride: node-b7", 1),
		"a default":     full + "pluginCacheDir: /var/cache/sluice\n",
		"order of keys": strings.Replace(full, "tier: back, app.kubernetes.io/name: cart", "app.kubernetes.io/name: cart, tier: back", 1),
	} {
		if what == "a default" {
			text = strings.Replace(full, "pluginCacheDir: /var/cache/sluice\n", "", 1) + "pluginCacheDir: /var/cache/sluice\n"
		}
		if got := hash(text); got != before {
			t.Errorf("%s: hash %s, before %s", what, got, before)
		}
	}
	for what, text := range map[string]string{
		"a setting": strings.Replace(full, "a: 0.5", "a: 0.6", 1), "a field": strings.Replace(full, "period: 5s", "period: 6s", 1),
		"order of bindings": strings.Replace(full, "- namespaces: [lab]", "- namespaces: [other]", 1), "the default policy": strings.Replace(full, "defaultPolicy: watch", "", 1),
	} {
		if hash(text) == before {
			t.Errorf("%s: the same hash", what)
		}
	}
	if hash(head) != Default().Hash() || hash(DefaultsYAML()) != hash(head) {
		t.Error("the defaults have another hash than no fields")
	}
}
