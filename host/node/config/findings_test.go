package config

import (
	"slices"
	"strings"
	"testing"
)

func TestWhatHasNoEffectIsAWarning(t *testing.T) {
	const plugins = "clusterCIDR: 10.0.0.0/8\nplugins: [{name: a, file: a.wasm}, {name: b, file: b.wasm}]\n"
	const policies = plugins + "policies: [{name: p, plugins: [{name: a}], shadow: [{name: b}]}, {name: q, plugins: [{name: a}]}]\n"
	for text, want := range map[string][]string{
		policies + "bindings: [{namespaces: [shop], policy: p}]\nallow: [{policies: [q]}]\n": nil,
		policies + "bindings: [{namespaces: [shop], policy: p}]\ndefaultPolicy: q\n":         nil,
		policies: {"policies[0]: policy p applies to no Service: no binding, allow or defaultPolicy names it", "policies[1]: policy q applies to no Service: no binding, allow or defaultPolicy names it"},
		plugins + "policies: [{name: p, plugins: [{name: a}]}]\ndefaultPolicy: p\n": {"plugins[1]: no policy uses plugin b, so it is not loaded"},
		policies + "defaultPolicy: q\nbindings: [{namespaces: [shop, bank], policy: p}, {namespaces: [bank], selector: {matchLabels: {t: a}}, policy: q}]\n": {
			"bindings[1]: never applies: bindings[0] selects all Services that it does"},
		policies + "defaultPolicy: q\nbindings: [{namespaces: [shop], policy: p}, {namespaces: [bank], policy: q}, {namespaces: [bank, shop], policy: q}]\n": {
			"bindings[2]: never applies: each of its namespaces is one in which bindings[0] or bindings[1] selects all Services that it does"},
		policies + "defaultPolicy: q\nbindings: [{selector: {matchLabels: {t: a}, matchExpressions: [{key: t, operator: DoesNotExist}]}, policy: p}]\n": {
			"bindings[0]: never applies: its selector contradicts itself"},
		policies + "defaultPolicy: q\nbindings: [{namespaces: [shop], nodes: {percent: 5}, policy: p}, {namespaces: [shop], policy: q}]\n": nil,
	} {
		c, err := Parse([]byte(head+text), "/")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Warnings(); !slices.Equal(got, want) {
			t.Errorf("%s\nwarnings:\n%s\nwant:\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
