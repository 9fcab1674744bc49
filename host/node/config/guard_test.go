package config

import (
	"strings"
	"testing"
	"time"
)

func TestInvalidGuardsAreReported(t *testing.T) {
	const plugins = "plugins: [{name: x}], "
	for text, want := range map[string]string{
		plugins + "guard: {}":                                  "policies[0].guard.failedPercent: required",
		plugins + "guard: {failedPercent: 0}":                  "policies[0].guard.failedPercent: 0 is not between 1 and 100",
		plugins + "guard: {failedPercent: 101}":                "policies[0].guard.failedPercent: 101 is not between 1 and 100",
		plugins + "guard: {failedPercent: 2.5}":                "policies[0].guard.failedPercent: 2.5 is not an integer",
		plugins + "guard: {failedPercent: 2, window: 4s}":      "policies[0].guard.window: ",
		plugins + "guard: {failedPercent: 2, window: 11m}":     "policies[0].guard.window: 11m0s is more than 10m0s",
		plugins + "guard: {failedPercent: 2, window: soon}":    "policies[0].guard.window: ",
		plugins + "guard: {failedPercent: 2, after: 3}":        "policies[0].guard.after: unknown field",
		"panic: {belowPercent: 50}, guard: {failedPercent: 2}": "policies[0].guard: plugins required",
		plugins + "guard: {failedPercent: 2, window: 7s}":      "",
		plugins + "guard: {failedPercent: 100, window: 10m0s}": "",
	} {
		_, err := Parse([]byte(head+"plugins: [{name: x, file: x}]\npolicies: [{name: p, "+text+"}]\n"), "")
		if want == "" && err == nil {
			continue
		}
		if want == "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	_, err := Parse([]byte(head+"signals: {period: 20s}\nplugins: [{name: x, file: x}]\npolicies: [{name: p, plugins: [{name: x}], guard: {failedPercent: 2}}]\n"), "")
	if want := "policies[0].guard.window: 30s is less than 2 times signals.period, 20s"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	c := parse(t, "plugins: [{name: x, file: x}]\npolicies: [{name: p, plugins: [{name: x}], guard: {failedPercent: 2}}]\n")
	if want := (Guard{FailedPercent: 2, Window: 30 * time.Second}); *c.Policies[0].Guard != want {
		t.Errorf("got %+v, want %+v", c.Policies[0].Guard, want)
	}
}
