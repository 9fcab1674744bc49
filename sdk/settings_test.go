package sdk

import (
	"strings"
	"testing"
)

type some struct {
	Count int    `json:"count"`
	Name  string `json:"name"`
	Inner struct {
		Flag bool `json:"flag"`
	} `json:"inner"`
}

func TestUnmarshalSettingsKeepsDefaultsOfAbsentFields(t *testing.T) {
	for _, text := range []string{"", "  \n", "{}", "null", `{"name":"n"}`} {
		s := some{Count: 5, Name: "n"}
		if err := UnmarshalSettings([]byte(text), &s); err != nil || s.Count != 5 || s.Name != "n" {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
	var s some
	if err := UnmarshalSettings([]byte(`{"count":7,"inner":{"flag":true}}`), &s); err != nil || s.Count != 7 || !s.Inner.Flag {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestParseSettingsReplacesFieldsOfTheDefaults(t *testing.T) {
	defaults := some{Count: 5, Name: "n"}
	if s, err := ParseSettings([]byte(`{"count":7}`), defaults); err != nil || s.Count != 7 || s.Name != "n" || defaults.Count != 5 {
		t.Errorf("%+v, %+v, %v", s, defaults, err)
	}
	if s, err := ParseSettings(nil, defaults); err != nil || s != defaults {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := ParseSettings([]byte(`{"cuont":7}`), defaults); err == nil || !strings.Contains(err.Error(), `"cuont"`) {
		t.Error(err)
	}
}

func TestUnmarshalSettingsErrorsNameTheField(t *testing.T) {
	for text, want := range map[string]string{
		`{"cuont":1}`:            `unknown field "cuont"`,
		`{"inner":{"flog":1}}`:   `unknown field "flog"`,
		`{"count":"1"}`:          "count: want an integer, got a string",
		`{"count":1.5}`:          "count: want an integer, got 1.5",
		`{"inner":{"flag":"x"}}`: "inner.flag: want true or false, got a string",
		`[1]`:                    "settings must be a JSON object, got array",
		`{"count":1`:             "unexpected end",
		`{"count":}`:             "invalid JSON at byte 10",
		`{} {}`:                  "unexpected text after the JSON object",
		`{}x`:                    "unexpected text after the JSON object",
	} {
		var s some
		if err := UnmarshalSettings([]byte(text), &s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
