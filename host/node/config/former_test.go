package config

import (
	"strings"
	"testing"
)

func TestFormerNamesOfPluginsSayWhatTheyAreNow(t *testing.T) {
	for name, now := range map[string]string{
		"zone-spill": `it is plugin "locality" now`, "failover": `it is plugin "locality" now with mode: priority`,
		"slow-start": `it is plugin "lifecycle" now with the section warm`, "staged-drain": `it is plugin "lifecycle" now with the section drain`,
	} {
		for what, text := range map[string]string{
			"policies[0].plugins[0].name: no plugin":      "policies: [{name: p, plugins: [{name: NAME}]}]",
			"policies[0].shadow[0].name: no plugin":       "policies: [{name: p, shadow: [{name: NAME}]}]",
			"plugins[0].file: /plugins/" + name + ".wasm": "plugins: [{name: NAME, file: /plugins/NAME.wasm}]",
			"bindings[0].settings[" + name + "]: policy p has no plugin": "plugins: [{name: near, file: near.wasm}]\npolicies: [{name: p, plugins: [{name: near}]}]\n" +
				"bindings: [{namespaces: [a], policy: p, settings: {NAME: {}}}]",
		} {
			_, err := Parse([]byte(head+strings.ReplaceAll(text, "NAME", name)), "/")
			if err == nil || !strings.Contains(err.Error(), what) || !strings.HasSuffix(err.Error(), now) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	// A plugin of one's own may have the name.
	if _, err := Parse([]byte(head+"plugins: [{name: failover, file: mine/failover.wasm}]\npolicies: [{name: p, plugins: [{name: failover}]}]"), "/"); err != nil {
		t.Error(err)
	}
}
