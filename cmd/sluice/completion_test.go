package main

import "testing"

func TestNamesOfSettingsAreCompleted(t *testing.T) {
	for text, want := range map[string]string{
		``: `{ `, ` `: `{ `, `{`: `{ `, `{"fa`: `{ fa`, `{"a": 1, `: `{"a": 1,  `, `{"a": "x,{", "b`: `{"a": "x,{",  b`, `{"a": [{"b": 1}], "`: `{"a": [{"b": 1}],  `,
		// A value, a field of an object within, and what is complete.
		`{"a"`: "", `{"a": `: "", `{"a": {`: "", `{"a": ["`: "", `{"a": 1}`: "", `[`: "", `{"a\": 1, "`: "",
	} {
		before, name, ok := nameToComplete(text)
		if got := before + " " + name; ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, ok, want)
		}
	}
}
