package strictyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestSplitYAML(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                 {"", ""},
		"comments only":           {"# a\n---\n# b\n\n---\n", ""},
		"one, no line end":        {"a: 1", `1:"a: 1"`},
		"two":                     {"a: 1\n---\nb: 2\n", `1:"a: 1\n" 2:"---\nb: 2\n"`},
		"contents on the marker":  {"--- {a: 1}\n--- # x\n--- |\n  y\n", `1:"--- {a: 1}\n" 3:"--- |\n  y\n"`},
		"marks inside a scalar":   {"a: |\n  ---\n  ...\nb: 1\n", `1:"a: |\n  ---\n  ...\nb: 1\n"`},
		"more dashes":             {"----: 1\n", `1:"----: 1\n"`},
		"an end and what follows": {"a: 1\n...\nb: 2\n", `1:"a: 1\n" 3:"b: 2\n"`},
		"a directive":             {"%YAML 1.1\n---\na: 1\n", `2:"---\na: 1\n"`},
		"line ends of Windows":    {"a: 1\r\n---\r\nb: 2\r\n", `1:"a: 1\r\n" 2:"---\r\nb: 2\r\n"`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := formatDocuments(SplitYAML(c.text)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestSplitJSON(t *testing.T) {
	docs, err := SplitJSON("{}\n\n [1]\n{\n")
	if got := formatDocuments(docs); got != `1:"{}" 3:"[1]"` {
		t.Errorf("got %s", got)
	}
	var s *SyntaxError
	if !errors.As(err, &s) || s.Line != 4 {
		t.Errorf("error %v", err)
	}
	if docs, err := SplitJSON(" \n"); len(docs) != 0 || err != nil {
		t.Errorf("nothing: %v %v", docs, err)
	}
	if _, err := SplitJSON("{}\n{\"a\":\n x}"); !errors.As(err, &s) || s.Line != 3 {
		t.Errorf("error %v", err)
	}
}

func formatDocuments(docs []Document) string {
	var out []string
	for _, d := range docs {
		out = append(out, fmt.Sprintf("%d:%q", d.Line, d.Text))
	}
	return strings.Join(out, " ")
}

func TestToJSONReportsLinesOfTheFile(t *testing.T) {
	_, _, err := Document{Text: "a: 1\nb: [\n", Line: 10}.ToJSON()
	var s *SyntaxError
	if !errors.As(err, &s) || s.Line < 10 || s.Line > 13 {
		t.Errorf("error %v", err)
	}
	raw, duplicates, err := Document{Text: "a: 1\na: 2\n", Line: 10}.ToJSON()
	if err != nil || string(raw) != `{"a":2}` || duplicates == nil || !strings.Contains(duplicates.Error(), `"a"`) {
		t.Errorf("%s, %v, %v", raw, duplicates, err)
	}
}

// inner and outer have every shape that Decode supports.
type inner struct {
	N int32 `json:"n"`
}

type outer struct {
	inner
	S    string            `json:"s"`
	B    *bool             `json:"b"`
	List []inner           `json:"list"`
	Map  map[string]string `json:"map"`
	Raw  json.RawMessage   `json:"raw"`
	Free any               `json:"free"`
	skip string            //lint:ignore U1000 unexported fields are no part of a form
}

func TestNumbersThatAreNotFiniteAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nb:\n- c: .nan\n":            "line 12: b[0].c: .nan is not a finite number",
		"b: {c: [1, -.Inf]}\n":             "line 10: b.c[1]: -.Inf is not a finite number",
		"a: &x .inf\nb: *x\n":              "line 10: a: .inf is not a finite number",
		"items:\n- a: 1\n- a: .NaN\n":      "line 12: items[1].a: .NaN is not a finite number",
		"a: !!float .inf\n":                "line 10: a: .inf is not a finite number",
		"a: \".nan\"\nb: 1e400\nc: -0.0\n": "",
	} {
		_, _, err := Document{text, 10}.ToJSON()
		if got := fmt.Sprint(err); got != want && (want != "" || err != nil) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestDecodeReportsAllErrorsAndKeepsTheRest(t *testing.T) {
	raw := []byte(`{"s":1,"b":"x","N":1,"n":2147483648,"list":[{"n":1},7,{"n":2,"m":3},null],"map":{"a":"b","c":1},
		"raw":{"z":1.50,"a":[true]},"free":[1],"skip":"x","s":2}`)
	if _, duplicates, _ := ParseJSON(raw); fmt.Sprint(duplicates) != "[s]" {
		t.Errorf("duplicates: %v", duplicates)
	}
	v, problems := Decode[outer](raw)
	var got []string
	for _, p := range problems.Reported {
		got = append(got, p.Error())
	}
	slices.Sort(got)
	want := []string{
		`N: unknown field (did you mean "n"?)`,
		`b: "x" is not true or false`,
		`list[1]: 7 is not an object`,
		`list[2].m: unknown field`,
		`map[c]: 1 is not a string (quote it)`,
		`n: 2147483648 is not an integer`,
		`s: 2 is not a string (quote it)`,
		`skip: unknown field`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if fmt.Sprint(v.List) != "[{1} {0} {2} {0}]" || fmt.Sprint(v.Map) != "map[a:b]" || string(v.Raw) != `{"a":[true],"z":1.50}` || v.B != nil {
		t.Errorf("got %+v", v)
	}
	for path, covered := range map[string]bool{"list[1]": true, "list[1].n": true, "list[10]": false, "list": false, "b": true, "skip": false} {
		if problems.Covers(path) != covered {
			t.Errorf("Covers(%s) = %v", path, !covered)
		}
	}
}

func TestDecodeOfNonObject(t *testing.T) {
	if _, problems := Decode[outer]([]byte("[]")); len(problems.Reported) != 1 || problems.Reported[0].Error() != "a list is not an object" {
		t.Errorf("got %v", problems)
	}
	if v, problems := Decode[outer]([]byte("null")); v == nil || len(problems.Reported) != 0 {
		t.Errorf("nothing at all: %v", problems)
	}
}

func FuzzSplitYAML(f *testing.F) {
	f.Add("a: 1\n---\n%YAML 1.1\n...\n")
	f.Fuzz(func(t *testing.T, text string) {
		rest, line := text, 0
		for _, d := range SplitYAML(text) {
			i := strings.Index(rest, d.Text)
			if i < 0 || d.Line <= line || d.Text == "" {
				t.Fatalf("%q: document %+v is not in the text, in order", text, d)
			}
			rest, line = rest[i+len(d.Text):], d.Line
		}
	})
}

// FuzzDecode compares the strict decoder with the tolerant one: where it accepts a text, both return the same, and nothing is to
// report.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{"s":"x","b":true,"n":7,"list":[{"n":1},{},null],"map":{"a":"b"},"raw":{"z":1.50},"free":[1]}`,
		`{"map":{"a":null}}`, `{"map":{"a":"","b":null},"b":null}`, `{"S":"x"}`, `{"n":1.0}`, `{"n":1e2}`, `{"s":"\ud800"}`, "{\"s\":\"\xff\"}", `{"free":{"a":null,"b":12345678901234567890}}`, `{"n":-0}`, `{"free":1e999}`,
		`{"raw":null,"list":null}`, `null`, `[]`, `{"list":{}}`, `{"s":"x","s":"y"}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := SplitJSON(text)
		if err != nil {
			return
		}
		for _, d := range docs {
			got := decodeStrictly[outer]([]byte(d.Text))
			if got == nil {
				continue
			}
			want, errs := decodeTolerantly[outer]([]byte(d.Text), func(string) any { return nil })
			if len(errs.Reported) > 0 {
				t.Fatalf("%q: the strict decoder accepts it: %v", d.Text, errs.Reported)
			}
			for _, v := range []*outer{got, want} { // the tolerant decoder sorts keys and drops blanks
				if tree, _, _ := ParseJSON(v.Raw); len(v.Raw) > 0 {
					v.Raw, _ = json.Marshal(tree)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: %+v, tolerantly: %+v", d.Text, got, want)
			}
		}
	})
}
