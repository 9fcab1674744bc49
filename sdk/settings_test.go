package sdk

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// sample has fields of every kind.
type sample struct {
	Flag  bool             `json:"flag"`
	Count int64            `json:"count" range:"-5,100"`
	Share float64          `json:"share" range:"0.5,1000000"`
	Hold  Duration         `json:"hold" range:"0s,1h"`
	Name  string           `json:"name"`
	Names []string         `json:"names"`
	Zones map[string]int64 `json:"zones" range:"0,10"`
	Inner inner            `json:"inner"`
	List  []element        `json:"list"`
}

type inner struct {
	Flag bool `json:"flag"`
	Deep struct {
		N int64 `json:"n" range:"1,3"`
	} `json:"deep"`
}

type element struct {
	Percent int64    `json:"percent" range:"0,100"`
	Names   []string `json:"names"`
}

func (s *sample) fields(f *Fields) {
	f.Bool("flag", &s.Flag)
	f.Int("count", &s.Count, -5, 100)
	f.Float("share", &s.Share, 0.5, 1000000)
	f.Duration("hold", &s.Hold, 0, Hour)
	f.String("name", &s.Name)
	f.Strings("names", &s.Names)
	f.Ints("zones", &s.Zones, 0, 10)
	f.Object("inner", func(f *Fields) {
		f.Bool("flag", &s.Inner.Flag)
		f.Object("deep", func(f *Fields) { f.Int("n", &s.Inner.Deep.N, 1, 3) })
	})
	List(f, "list", &s.List, (*element).fields)
}

func (e *element) fields(f *Fields) {
	f.Int("percent", &e.Percent, 0, 100)
	f.Strings("names", &e.Names)
}

// defaults returns settings with defaults in their ranges.
func defaults() *sample {
	return &sample{Count: 5, Share: 1, Name: "n", Names: []string{"x"}, Zones: map[string]int64{"z": 1}, Inner: inner{Deep: struct {
		N int64 `json:"n" range:"1,3"`
	}{2}}}
}

func TestAbsentFieldsKeepTheirDefaults(t *testing.T) {
	for _, text := range []string{"", "  \n", "{}", "null", ` {"name":"n"} `, `{"count":null,"inner":null,"inner":{"deep":null}}`} {
		s := defaults()
		if err := ParseSettings([]byte(text), s.fields); err != nil || !reflect.DeepEqual(s, defaults()) {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

func TestErrorsOfSettingsNameTheField(t *testing.T) {
	for text, want := range map[string]string{
		`{"cuont":1}`:                               `unknown field "cuont"`,
		`{"inner":{"flog":1}}`:                      `inner: unknown field "flog"`,
		`{"b":1,"":1,"a":2}`:                        `unknown field ""`,
		`{"count":"1"}`:                             "count: want an integer, got a string",
		`{"count":1.5}`:                             "count: want an integer, got 1.5",
		`{"count":true}`:                            "count: want an integer, got true or false",
		`{"count":101}`:                             "count: 101 is not -5 to 100",
		`{"count":1` + strings.Repeat("0", 99):      "invalid JSON: unexpected end",
		`{"count":` + strings.Repeat("9", 99) + `}`: "count: want an integer, got " + strings.Repeat("9", 40) + "...",
		`{"share":0.4}`:                             "share: 0.4 is not 0.5 to 1000000",
		`{"share":1e7}`:                             "share: 1e+07 is not 0.5 to 1000000",
		`{"hold":30}`:                               "hold: want a duration such as 30s or 1m30s, got a number",
		`{"hold":"30"}`:                             `hold: "30" is not a duration such as 30s or 1m30s`,
		`{"hold":"1h1ms"}`:                          "hold: 1h1ms is not 0s to 1h",
		`{"share":1e999}`:                           "share: want a number, got 1e999",
		`{"name":5}`:                                "name: want a string, got a number",
		`{"inner":{"flag":"x"}}`:                    "inner.flag: want true or false, got a string",
		`{"inner":{"deep":{"n":4}}}`:                "inner.deep.n: 4 is not 1 to 3",
		`{"inner":[]}`:                              "inner: want an object, got a list",
		`{"list":[{},{"percent":101}]}`:             "list[1].percent: 101 is not 0 to 100",
		`{"list":[{},{},{"Percent":1}]}`:            `list[2]: unknown field "Percent"`,
		`{"list":[{"names":["a",5]}]}`:              "list[0].names[1]: want a string, got a number",
		`{"list":[7]}`:                              "list[0]: want an object, got a number",
		`{"list":{}}`:                               "list: want a list, got an object",
		`{"zones":{"b":-1,"a":11}}`:                 "zones.a: 11 is not 0 to 10",
		`{"zones":{"a":"1"}}`:                       "zones.a: want an integer, got a string",
		`{"zones":[]}`:                              "zones: want an object, got a list",
		`[1]`:                                       "settings must be a JSON object, got a list",
		`7`:                                         "settings must be a JSON object, got a number",
		`{"Count":1}`:                               `unknown field "Count"`,
		`{"count":1`:                                "invalid JSON: unexpected end",
		`{"count":}`:                                `invalid JSON at byte 10: want a value, got '}'`,
		`{"count" 1}`:                               `invalid JSON at byte 10: want ":", got '1'`,
		`{count:1}`:                                 `invalid JSON at byte 2: want a string, got 'c'`,
		`{"count":1 "name":""}`:                     `invalid JSON at byte 12: want "," or "}", got '"'`,
		`{"names":["a",]}`:                          `invalid JSON at byte 15: want a value, got ']'`,
		`{"names":["a"}`:                            `invalid JSON at byte 14: want "," or "]", got '}'`,
		`{"count":1,}`:                              `invalid JSON at byte 12: want a string, got '}'`,
		`{"count":01}`:                              `invalid JSON at byte 11: want "," or "}", got '1'`,
		`{"count":-}`:                               `invalid JSON at byte 11: want a digit, got '}'`,
		"{\"name\":\"a\nb\"}":                       `invalid JSON at byte 11: want a character or ", got '\n'`,
		`{"name":"\x"}`:                             `invalid JSON at byte 11: want an escape, got 'x'`,
		`{"flag":ture}`:                             `invalid JSON at byte 10: want true, got 'u'`,
		`{} {}`:                                     "unexpected text after the JSON object, at byte 4",
		`{}x`:                                       "unexpected text after the JSON object, at byte 3",
		strings.Repeat(`{"inner":`, 10001):          "invalid JSON: more than 10000 levels",
	} {
		if err := ParseSettings([]byte(text), defaults().fields); err == nil || err.Error() != want {
			t.Errorf("%.60s: %v, want %s", text, err, want)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]Duration{
		"0s": 0, "30s": 30 * Second, "1m30s": 90 * Second, "500ms": 500 * Millisecond, "1h": Hour, "1s1s1s1s": 4 * Second, "00007s": 7 * Second,
		"99999h99999h99999h99999h": 4 * 99999 * Hour, "1s2h": 2*Hour + Second, "1m1ms": Minute + Millisecond,
		"1s1s1s1s1s": -1, "": -1, "30": -1, "s": -1, "100000s": -1, "-1s": -1, "+1s": -1, "1.5s": -1, "1d": -1, "1sm": -1, " 1s": -1, "1s ": -1, "1 s": -1,
		"1S": -1, "1us": -1, "1\u00b5s": -1, "1mss": -1, "ms": -1,
	} {
		d, ok := parseDuration(text)
		if !ok {
			d = -1
		}
		if d != want {
			t.Errorf("%q: %d, want %d", text, d, want)
		}
		if again, ok := parseDuration(d.String()); d >= 0 && text[0] != '9' && (!ok || again != d) {
			t.Errorf("%q: as text %q", text, d)
		}
	}
	for d, want := range map[Duration]string{90 * Second: "1m30s", Hour + Millisecond: "1h1ms", 0: "0s", 1: "0s", -Second: "-1s", 1 << 62: "1281023h53m38s427ms"} {
		if d.String() != want {
			t.Errorf("%d: %s, want %s", d, d, want)
		}
	}
}

func TestRequiredFields(t *testing.T) {
	list := func(f *Fields) {
		var all []element
		List(f, "list", &all, func(e *element, f *Fields) {
			f.Require("percent")
			e.fields(f)
			if e.Percent == 7 {
				f.Fail("percent", "7 is unlucky")
			}
		})
	}
	for text, want := range map[string]string{
		`{"list":[{"percent":0}]}`:                     "",
		`{"list":[{"percent":0},{}]}`:                  "list[1].percent: missing",
		`{"list":[null]}`:                              "list[0].percent: missing",
		`{"list":[{"percent":null}]}`:                  "list[0].percent: missing",
		`{"list":[{"percent":7,"unknown":1}]}`:         "list[0].percent: 7 is unlucky",
		`{"list":[{"percent":1},{"percent":"7"}]}`:     "list[1].percent: want an integer, got a string",
		`{"list":[{"percent":1,"names":["a","b"]}]}  `: "",
	} {
		if err := ParseSettings([]byte(text), list); fmt.Sprint(err) != want && (err != nil || want != "") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// agree checks that ParseSettings accepts a text if and only if the reference does, with the same values.
func agree(t *testing.T, text []byte) (err, reference error) {
	got, want := defaults(), defaults()
	err, reference = ParseSettings(text, got.fields), unmarshalSettings(text, want)
	if (err == nil) != (reference == nil) {
		t.Fatalf("%q: %v, the reference: %v", text, err, reference)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: %+v, the reference: %+v", text, got, want)
	}
	return err, reference
}

// The errors are those of the reference too, unless the text is not JSON.
func TestSettingsAreParsedAsByEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	valid := 0
	for range 20_000 {
		text := []byte(randomObject(r, []string{"flag", "count", "share", "hold", "name", "names", "zones", "inner", "list"}))
		if r.IntN(10) == 0 {
			text[r.IntN(len(text))] = "{}[]\",:0e\\tn\xff"[r.IntN(13)]
		}
		err, reference := agree(t, text)
		if err == nil {
			valid++
		} else if json.Valid(text) && err.Error() != reference.Error() {
			t.Fatalf("%q: %v, the reference: %v", text, err, reference)
		}
	}
	if valid < 2000 {
		t.Errorf("only %d texts are valid", valid)
	}
}

// randomObject returns an object with some fields, mostly of the right kind.
func randomObject(r *rand.Rand, names []string) string {
	var b strings.Builder
	for i := range r.IntN(4) {
		name := names[r.IntN(len(names))]
		if r.IntN(60) == 0 {
			name = pick(r, "Flag", "unknown", "", `fl\u0061g`)
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + name + `":` + pick(r, "", "", " ", "\n\t") + randomField(r, name))
	}
	return "{" + b.String() + pick(r, "", "", " ") + "}"
}

func randomField(r *rand.Rand, name string) string {
	if r.IntN(25) == 0 {
		name = pick(r, "flag", "count", "share", "hold", "name", "names", "zones", "inner", "list", "null")
	}
	switch name {
	case "flag":
		return pick(r, "true", "false")
	case "count", "percent", "n":
		return pick(r, "0", "1", "2", "3", "-0", "7", "7", "3", "100", "101", "-5", "-6", "1.5", "1e1", "99999999999999999999")
	case "share":
		return pick(r, "0.5", "1", "1e3", "1E+2", "123.25e-1", "1000000", "0.4", "1e999", "1e-400", "2000000.5")
	case "hold":
		return pick(r, `"30s"`, `"1m30s"`, `"500ms"`, `"1h"`, `"1h1s"`, `"30"`, `""`, `"1\u0073"`, "30")
	case "name", "a", "b":
		return pick(r, `""`, `"n"`, `"zone ä"`, `"\u00e4\n\/\"\\"`, `"\ud83d\ude00"`, `"\ud83dx"`, `"\ude00\ud83d\u0041"`, "\"\xff\xc3\"", "\"\u2028\"")
	case "names":
		return pick(r, "[]", "null", `["a"]`, `[ "a" , null,"b"]`, `["a",5]`, `[["a"]]`)
	case "zones":
		return pick(r, "{}", "null", `{"a":1}`, `{"b":2,"a":10,"b":3}`, `{"":0,"x y":null}`, `{"a":11,"b":-1}`, `{"a":"1"}`, `{"a":{}}`)
	case "inner":
		return pick(r, "null", randomObject(r, []string{"flag", "deep"}))
	case "deep":
		return pick(r, "null", randomObject(r, []string{"n"}))
	case "list":
		return pick(r, "[]", "null", "[null]", "[7]", "["+randomObject(r, []string{"percent", "names"})+", "+randomObject(r, []string{"percent", "names"})+"]")
	}
	return pick(r, "null", "1", `"x"`, `{"a":[{}]}`)
}

func pick(r *rand.Rand, texts ...string) string { return texts[r.IntN(len(texts))] }

// FuzzParseSettings checks that no text makes ParseSettings panic, and that it accepts what the reference accepts.
func FuzzParseSettings(f *testing.F) {
	for _, text := range []string{
		"", "null", `{"flag":true,"count":1,"share":1.5,"name":"\ud83d\ude00"}`, `{"names":["a",null],"zones":{"a":1,"a":2},"list":[{"percent":1},null]}`,
		`{"inner":{"flag":false,"deep":{"n":3}}}`, `{"count":1e1}`, "{\"name\":\"\xff\"}", `[{}]`, `{"a":{"b":[1,2,{}]}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if strings.TrimSpace(string(text)) == "" { // the reference ignores more kinds of space
			return
		}
		agree(t, text)
	})
}
