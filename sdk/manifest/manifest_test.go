package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// with returns the canonical text of a manifest with settings.
func with(settings string) string {
	return `{"manifest":1,"title":"t","version":"1","licence":"MIT","role":"share","needs":["outcomes"],"settings":` + settings + `}`
}

func module(contents ...string) []byte {
	out := append([]byte{}, header...)
	out = append(out, 1, 4, 1, 0x60, 0, 0) // a type section
	for _, c := range contents {
		out = AppendSection(out, []byte(c))
	}
	return out
}

const all = `[{"name":"i","type":"integer","min":1,"max":5,"default":2,"text":"t"},{"name":"n","type":"number","max":0.5,"text":"t"},` +
	`{"name":"p","type":"percent","default":2.5,"text":"t"},{"name":"d","type":"duration","min":"1s","max":"5m","default":"1m30s","text":"t"},` +
	`{"name":"s","type":"text","values":["a","zone"],"default":"a","text":"t"},{"name":"b","type":"boolean","default":true,"text":"t"},` +
	`{"name":"l","type":"list","max":2,"items":{"type":"text","max":3},"text":"t"},{"name":"m","type":"map","max":2,"items":{"type":"integer","min":0},"text":"t"},` +
	`{"name":"o","type":"list","items":{"type":"object","fields":[{"name":"r","type":"integer","required":true,"text":"t"}]},"text":"t"}]`

func TestASectionIsReadBackAndReplaced(t *testing.T) {
	m, err := ParseFile([]byte(strings.ReplaceAll(with(all), ",", ",\n  ")))
	if err != nil {
		t.Fatal(err)
	}
	once, err := Embed(module(), m)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := Embed(once, m)
	if err != nil || !bytes.Equal(once, twice) {
		t.Errorf("embedded again it is another module: %v", err)
	}
	m.Title = "another"
	if twice, err = Embed(once, m); err != nil {
		t.Fatal(err)
	}
	got, err := Read(twice)
	if err != nil || !reflect.DeepEqual(got, m) || string(m.Encode()) != strings.Replace(with(all), `"t"`, `"another"`, 1) {
		t.Errorf("read back %+v, %v\n%s", got, err, m.Encode())
	}
	if !bytes.Equal(twice[:len(module())], module()) {
		t.Error("the other sections have changed")
	}
}

func TestHostileSectionsAreRefused(t *testing.T) {
	field := func(rest string) string { return with(`[{"name":"a",` + rest + `}]`) }
	counters := func(list ...string) string {
		return strings.Replace(with("null"), `"settings"`, `"counters":[`+strings.Join(list, ",")+`],"settings"`, 1)
	}
	for name, c := range map[string]struct{ content, want string }{
		"empty":                         {"", "line 1: EOF"},
		"no JSON":                       {"role: share", "line 1: invalid character"},
		"huge":                          {with(`"` + strings.Repeat("x", MaxLen) + `"`), "the limit is 65536"},
		"invalid UTF-8":                 {strings.Replace(with("null"), "MIT", "\xff", 1), "invalid UTF-8"},
		"another version":               {strings.Replace(with("null"), ":1", ":2", 1), "version 2 of the format is unknown"},
		"no version":                    {strings.Replace(with("null"), `"manifest":1,`, "", 1), "manifest: missing"},
		"an unknown field":              {strings.Replace(with("null"), `"title"`, `"root":1,"title"`, 1), `unknown field "root"`},
		"a field twice":                 {strings.Replace(with("null"), `"title"`, `"role":"reset","title"`, 1), "canonical"},
		"another case":                  {strings.Replace(with("null"), `"title"`, `"Title"`, 1), "canonical"},
		"white space":                   {with("null") + "\n", "canonical"},
		"an escape":                     {strings.Replace(with("null"), "MIT", `\u0041`, 1), "canonical"},
		"text after it":                 {with("null") + "{}", "text after"},
		"another type":                  {strings.Replace(with("null"), `"t"`, "3", 1), "title: got a number"},
		"no title":                      {strings.Replace(with("null"), `"t"`, `""`, 1), "title: missing"},
		"two lines":                     {strings.Replace(with("null"), `"t"`, `"a\nb"`, 1), "title: "},
		"a terminal's escape":           {strings.Replace(with("null"), `"t"`, `"\u001b[2J"`, 1), "title: "},
		"an unknown role":               {strings.Replace(with("null"), "share", "boss", 1), `role: "boss" is none of exclude`},
		"an unknown input":              {strings.Replace(with("null"), "outcomes", "secrets", 1), `needs[0]: "secrets" is none of connections`},
		"an input twice":                {strings.Replace(with("null"), `"outcomes"`, `"outcomes","outcomes"`, 1), "needs[1]"},
		"an unknown type":               {field(`"type":"regexp","text":"t"`), "settings.a.type: "},
		"a name that is a path":         {with(`[{"name":"../../etc/passwd","type":"text","text":"t"}]`), `settings[0].name: "../../etc/passwd" is not a name`},
		"a name with a dot":             {with(`[{"name":"a.b","type":"text","text":"t"}]`), "is not a name"},
		"no name":                       {with(`[{"type":"text","text":"t"}]`), "is not a name"},
		"a name twice":                  {with(`[{"name":"a","type":"text","text":"t"},{"name":"A","type":"text","text":"t"}]`), "settings.A: the name exists twice"},
		"no text":                       {field(`"type":"text"`), "settings.a.text: missing"},
		"min above max":                 {field(`"type":"integer","min":2,"max":1,"text":"t"`), "min is more than max"},
		"a fraction of an integer":      {field(`"type":"integer","min":0.5,"text":"t"`), "min: want an integer"},
		"a default out of range":        {field(`"type":"integer","min":1,"max":5,"default":9,"text":"t"`), "settings.a.default: 9 is not 1 to 5"},
		"a default of another type":     {field(`"type":"boolean","default":"yes","text":"t"`), "settings.a.default: want true or false"},
		"a default that is none":        {field(`"type":"text","values":["x"],"default":"y","text":"t"`), `settings.a.default: "y" is none of "x"`},
		"a default of what is required": {field(`"type":"integer","default":1,"required":true,"text":"t"`), "has a default and is required"},
		"null as default":               {field(`"type":"integer","default":null,"text":"t"`), "settings.a.default: null"},
		"a percentage above 100":        {field(`"type":"percent","default":101,"text":"t"`), "101 is not 0 to 100"},
		"a duration without unit":       {field(`"type":"duration","default":"30","text":"t"`), `want a duration such as "30s", got "30"`},
		"a duration of days":            {field(`"type":"duration","max":"2d","text":"t"`), "max: want a duration"},
		"a negative number of items":    {field(`"type":"list","min":-1,"items":{"type":"text"},"text":"t"`), "how many"},
		"a range of a boolean":          {field(`"type":"boolean","min":1,"text":"t"`), "has no range"},
		"values of an integer":          {field(`"type":"integer","values":["1"],"text":"t"`), "only a text has values"},
		"a list of nothing":             {field(`"type":"list","text":"t"`), "items: for lists and maps"},
		"items of a text":               {field(`"type":"text","items":{"type":"text"},"text":"t"`), "items: for lists and maps"},
		"an object of nothing":          {field(`"type":"object","text":"t"`), "fields: for objects"},
		"nested too deep":               {field(strings.Repeat(`"type":"list","items":{`, 7) + `"type":"text"` + strings.Repeat("}", 7) + `,"text":"t"`), "nested deeper than 6"},
		"five counters":                 {counters(slices.Repeat([]string{`{"name":"a","text":"t"}`}, 5)...), "counters: 5, the limit is 4"},
		"a counter twice":               {counters(`{"name":"a","text":"t"}`, `{"name":"a","text":"t"}`), `counters[1].name: "a" is there twice`},
		"a counter without a name":      {counters(`{"name":"","text":"t"}`), `counters[0].name: ""`},
		"a counter with a label":        {counters(`{"name":"a{b=\"c\"}","text":"t"}`), "counters[0].name: "},
		"a counter of two lines":        {counters(`{"name":"a\nb","text":"t"}`), "counters[0].name: "},
		"a counter of capitals":         {counters(`{"name":"Ejections","text":"t"}`), `counters[0].name: "Ejections"`},
		"a counter that is a number":    {counters(`{"name":"1a","text":"t"}`), `counters[0].name: "1a"`},
		"a counter with a long name":    {counters(`{"name":"` + strings.Repeat("a", 20_000) + `","text":"t"}`), "counters[0].name: "},
		"a counter without a text":      {counters(`{"name":"a","text":""}`), "counters[0].text: missing"},
		"a text of a counter":           {counters(`{"name":"a","text":"a\u001b[2J"}`), "counters[0].text: "},
		"too many":                      {with("[" + strings.TrimSuffix(strings.Repeat(`{"name":"a","type":"list","items":{"type":"text"},"text":"t"},`, 1), ",") + many(300) + "]"), "more than 256"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(module(c.content))
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 500 {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if _, err := Read(module()); !errors.Is(err, ErrNone) {
		t.Errorf("no section: %v", err)
	}
	if _, err := Read(module(with("null"), with("null"))); err == nil || !strings.Contains(err.Error(), "2 of them") {
		t.Errorf("two sections: %v", err)
	}
	for _, text := range []string{"", "\x00asm", "\x00asm\x01\x00\x00\x00\x00", "\x00asm\x01\x00\x00\x00\x00\x05\x06sluic", "\x00asm\x01\x00\x00\x00\x00\xff\xff\xff\xff\x0f", "\x00asm\x01\x00\x00\x00\x00\x80\x80\x80\x80\x80\x80\x01"} {
		if _, err := Read([]byte(text)); err == nil || errors.Is(err, ErrNone) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWhatALaterMinorVersionHasAddedIsNotForEarlierModules(t *testing.T) {
	for _, name := range Needs() {
		m := Manifest{Needs: []string{name}}
		err, later := m.CheckMinor(0), name == "endpointState" || name == "nodeLabels" || name == "namespaceLabels" || name == "endpointLoad"
		want := "it has ABI version 2.0, and its manifest lists what a later version has added: " + name + " (2.1)"
		if later != (err != nil) || later && err.Error() != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := Manifest{Needs: Needs(), Counters: []Counter{{Name: "a", Text: "t"}}}
	if err := m.CheckMinor(0); err == nil || !strings.HasSuffix(err.Error(), ": endpointState (2.1), nodeLabels (2.1), namespaceLabels (2.1), endpointLoad (2.1), counters (2.1)") {
		t.Errorf("everything: %v", err)
	}
	if err := m.CheckMinor(abi.Minor); err != nil {
		t.Error(err)
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,{"name":"x` + strings.Repeat("y", i%60) + string(rune('a'+i%26)) + `","type":"text","text":"t"}`)
	}
	return b.String()
}

func TestAFileMayHaveAnyFormButNothingTwice(t *testing.T) {
	for text, want := range map[string]string{
		"{\n  \"manifest\": 1,\n  \"titel\": \"t\"\n}":                                             `line 3: unknown field "titel"`,
		"{\n  \"manifest\": 1,\n  \"title\": 5\n}":                                                 "line 3: title: got a number",
		"{\n  \"manifest\": 1\n  \"title\": \"t\"\n}":                                              "line 3: invalid character",
		strings.Replace(with("null"), `"title"`, `"Role":"reset","title"`, 1):                      `the field "role" exists twice`,
		strings.Replace(with("[]"), "[]", `[{"name":"a","type":"text","text":"t","text":"u"}]`, 1): `the field "text" exists twice`,
	} {
		if _, err := ParseFile([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestSettingsAreCheckedByTheSchema(t *testing.T) {
	m, err := Parse([]byte(with(all)))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		``: "", `null`: "", `{}`: "", `{"i": null, "l": []}`: "", ` {"i": 5, "n": -3.5, "p": 99.9, "d": "1m", "s": "zone", "b": false, "l": ["a"], "m": {"x/y": 1}, "o": [{"r": 1}]} `: "",
		`[]`:                      "want an object, got a list",
		`{"i": 6, "j": 1}`:        `i: 6 is not 1 to 5; j: unknown field "j"`,
		`{"i": 1.5}`:              "i: want an integer, got 1.5",
		`{"i": "1"}`:              "i: want an integer, got a string",
		`{"i": 1e400}`:            "i: want an integer, got a number",
		`{"n": 0.6}`:              "n: 0.6 is not at most 0.5",
		`{"p": 101}`:              "p: 101 is not 0 to 100",
		`{"d": "6m"}`:             "d: 6m is not 1s to 5m",
		`{"d": 30}`:               `d: want a duration such as "30s", got a number`,
		`{"d": "-30s"}`:           `d: want a duration such as "30s", got "-30s"`,
		`{"d": "0.5m"}`:           `d: want a duration such as "30s", got "0.5m"`,
		`{"s": "zon"}`:            `s: "zon" is none of "a", "zone"`,
		`{"b": 1}`:                "b: want true or false, got a number",
		`{"l": ["a", "bcde", 3]}`: "l: 3 items, want at most 2; l[1]: 4 bytes, want at most 3; l[2]: want a string, got a number",
		`{"l": [null]}`:           "l[0]: null",
		`{"m": {"a.b": -1}}`:      "m[a.b]: -1 is not 0 or more",
		`{"o": [{"r": 1}, {}, {"s": 1, "r": 2}]}`:   `o[1].r: missing; o[2].s: unknown field "s"`,
		`{"o": {"r": 1}}`:                           "o: want a list, got an object",
		`{"a\n\u001b[2J": 1, "m": {"\u0007": 1.5}}`: `m["\a"]: want an integer, got 1.5; "a\n\x1b[2J": unknown field "a\n\x1b[2J"`,
		`{"I": 1}`: `I: unknown field "I"`,
	} {
		var got []string
		for _, p := range m.CheckSettings([]byte(text)) {
			got = append(got, p.Error())
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s:\n got %s\nwant %s", text, strings.Join(got, "; "), want)
		}
	}
	if n := len(m.CheckSettings([]byte(`{"l": [` + strings.Repeat("1,", 5000) + `1]}`))); n != maxProblems {
		t.Errorf("%d problems", n)
	}
	m.Settings = nil
	if p := m.CheckSettings([]byte(`{"any": [1]}`)); p != nil {
		t.Errorf("without a schema: %v", p)
	}
}

func TestTheExampleIsWithinTheSchemaAndTheSamplesAreNot(t *testing.T) {
	m, err := Parse([]byte(with(all)))
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, v json.RawMessage) bool {
		text, err := json.Marshal(map[string]json.RawMessage{name: v})
		return err == nil && len(m.CheckSettings(text)) == 0
	}
	for i := range m.Settings {
		s := &m.Settings[i]
		inside, outside := s.Samples()
		for _, v := range append(inside, s.example()) {
			if !check(s.Name, v) {
				t.Errorf("%s: %s is not within", s.Name, v)
			}
		}
		for _, v := range outside {
			if check(s.Name, v) {
				t.Errorf("%s: %s is within", s.Name, v)
			}
		}
		if len(outside) < 3 {
			t.Errorf("%s: %d values outside", s.Name, len(outside))
		}
	}
}

func TestTheSchemaIsOneOfOpenAPI(t *testing.T) {
	m, err := Parse([]byte(with(all)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(m.JSONSchema())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"properties":{"b":{"default":true,"description":"t","type":"boolean"},"d":{"default":"1m30s","description":"t","format":"duration","type":"string"},` +
		`"i":{"default":2,"description":"t","maximum":5,"minimum":1,"type":"integer"},"l":{"description":"t","items":{"maxLength":3,"type":"string"},"maxItems":2,"type":"array"},` +
		`"m":{"additionalProperties":{"minimum":0,"type":"integer"},"description":"t","maxProperties":2,"type":"object"},"n":{"description":"t","maximum":0.5,"type":"number"},` +
		`"o":{"description":"t","items":{"properties":{"r":{"description":"t","type":"integer"}},"required":["r"],"type":"object"},"type":"array"},` +
		`"p":{"default":2.5,"description":"t","maximum":100,"minimum":0,"type":"number"},"s":{"default":"a","description":"t","enum":["a","zone"],"type":"string"}},"type":"object"}`
	if string(got) != want {
		t.Errorf("%s", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(module(with(all)))
	f.Add(module(with("null"), "{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Read(b)
		if err != nil {
			return
		}
		again, err := Embed(b, m)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := Read(again); err != nil || !reflect.DeepEqual(n, m) {
			t.Fatalf("embedded and read: %v", err)
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(with(all)), []byte(`{"i": 2, "o": [{"r": 1}], "m": {"a": 1}}`))
	f.Fuzz(func(t *testing.T, text, settings []byte) {
		m, err := ParseFile(text)
		if err != nil {
			return
		}
		n, err := Parse(m.Encode())
		if err != nil || !bytes.Equal(n.Encode(), m.Encode()) {
			t.Fatalf("%s: not read back: %v", m.Encode(), err)
		}
		for _, p := range n.CheckSettings(settings) {
			if len(p.Error()) > 100_000 {
				t.Fatal("a long error")
			}
		}
		_, _ = m.Table(), m.Rows()
		if _, err := json.Marshal(m.JSONSchema()); err != nil {
			t.Fatal(err)
		}
	})
}
