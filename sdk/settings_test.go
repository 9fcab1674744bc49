package sdk

import (
	"encoding/json"
	"net/netip"
	"reflect"
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

// nested has fields of every kind that the decoder goes through by itself.
type nested struct {
	List []struct {
		Percent *int     `json:"percent" range:"0,100"`
		Names   []string `json:"names"`
	} `json:"list"`
	Zones map[string]struct {
		Demand float64 `json:"demand" range:"0.5,2"`
	} `json:"zones"`
	Addr  netip.Addr      `json:"addr"`
	Bytes []byte          `json:"bytes"`
	Raw   json.RawMessage `json:"raw"`
	Any   any             `json:"any"`
	Pair  [2]int          `json:"pair"`
	Plain uint16
	embedded
	Wrong string `json:"wrong" range:"1,2"`
	None  string `json:"-"`
	priv  int    //lint:ignore U1000 unexported fields are no settings
}

type embedded struct {
	Deep int8 `json:"deep" range:"-3,3"`
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
		`{"inner":{"flog":1}}`:   `inner: unknown field "flog"`,
		`{"count":"1"}`:          "count: want an integer, got a string",
		`{"count":1.5}`:          "count: want an integer, got 1.5",
		`{"inner":{"flag":"x"}}`: "inner.flag: want true or false, got a string",
		`[1]`:                    "settings must be a JSON object, got a list",
		`{"Count":1}`:            `unknown field "Count"`,
		`{"inner":{"FLAG":1}}`:   `inner: unknown field "FLAG"`,
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

func TestUnmarshalSettingsErrorsNameTheElement(t *testing.T) {
	for text, want := range map[string]string{
		`{"list":[{},{"percent":101}]}`:           "list[1].percent: 101 is not 0 to 100",
		`{"list":[{"percent":"a"}]}`:              "list[0].percent: want an integer, got a string",
		`{"list":[{},{},{"Percent":1}]}`:          `list[2]: unknown field "Percent"`,
		`{"list":[{"names":["a",5]}]}`:            "list[0].names[1]: want a string, got a number",
		`{"list":[7]}`:                            "list[0]: want an object, got a number",
		`{"list":{}}`:                             "list: want a list, got an object",
		`{"zones":{"b":{},"a":{"demand":0.4}}}`:   "zones.a.demand: 0.4 is not 0.5 to 2",
		`{"zones":{"a":{"demand":1,"demnad":1}}}`: `zones.a: unknown field "demnad"`,
		`{"zones":[]}`:                            "zones: want an object, got a list",
		`{"deep":-4}`:                             "deep: -4 is not -3 to 3",
		`{"deep":128}`:                            "deep: want an integer, got 128",
		`{"addr":"x"}`:                            "addr: ParseAddr",
		`{"bytes":"%"}`:                           "bytes: illegal base64",
		`{"pair":["x"]}`:                          "pair: want an integer, got a string",
		`{"None":"x"}`:                            `unknown field "None"`,
		`{"-":"x"}`:                               `unknown field "-"`,
		`{"priv":1}`:                              `unknown field "priv"`,
		`{"plain":1}`:                             `unknown field "plain"`,
		`{"Plain":65536}`:                         "Plain: want an integer, got 65536",
		`{"wrong":"x"}`:                           `wrong: the plugin's tag range:"1,2" is not a range of numbers`,
	} {
		if err := UnmarshalSettings([]byte(text), new(nested)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Settings without an error have the values that encoding/json gives them.
func TestUnmarshalSettingsAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range []string{
		`{"list":[{"percent":7,"names":["a",""]},{"percent":null},null]}`, `{"list":[]}`, `{"list":null}`, `{"zones":null}`,
		`{"zones":{"a":{"demand":1.5},"":{}}}`, `{"addr":"10.0.0.1"}`, `{"addr":""}`, `{"addr":null}`, `{"bytes":"aGk="}`, `{"raw":{"A":[1]}}`,
		`{"any":{"a":[1,"b"]}}`, `{"pair":[1,2]}`, `{"deep":3,"Plain":1}`, `{"deep":1,"deep":2}`, "null", "{}",
	} {
		var got, want nested
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if err := UnmarshalSettings([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
}
