package config

import (
	"strings"
	"testing"
)

func TestInvalidNodesOfBindingsAreReported(t *testing.T) {
	for nodes, want := range map[string]string{
		"{}":              "bindings[0].nodes: percent or selector required",
		"{percent: 0}":    "bindings[0].nodes.percent: 0 is not a number from 0.1 to 100 with at most one decimal",
		"{percent: 0.05}": "bindings[0].nodes.percent: 0.05 is not",
		"{percent: 5.55}": "bindings[0].nodes.percent: 5.55 is not",
		"{percent: 101}":  "bindings[0].nodes.percent: 101 is not",
		"{percent: -1}":   "bindings[0].nodes.percent: -1 is not",
		"{percent: half}": `bindings[0].nodes.percent: "half" is not a number`,
		"{percent: [5]}":  "bindings[0].nodes.percent: a list is not a number",
		"{selector: {}}":  "bindings[0].nodes.selector: matchLabels or matchExpressions required",
		"{selector: {matchExpressions: [{key: a, operator: in}]}}": "bindings[0].nodes.selector.matchExpressions[0].operator: ",
		"{percent: 5, selector: {matchLabels: {'a b': c}}}":        "bindings[0].nodes.selector.matchLabels[a b]: \"a b\" is not a label key",
		"{share: 5}": "bindings[0].nodes.share: unknown field",
	} {
		_, err := Parse([]byte(head+"plugins: [{name: x, file: x}]\npolicies: [{name: p, plugins: [{name: x}]}]\nbindings: [{policy: p, nodes: "+nodes+"}]\n"), "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", nodes, err, want)
		}
	}
	for _, percent := range []string{"0.1", "0.3", "0.7", "33.3", "100"} {
		parse(t, "plugins: [{name: x, file: x}]\npolicies: [{name: p, plugins: [{name: x}]}]\nbindings: [{policy: p, nodes: {percent: "+percent+"}}]\n")
	}
}
