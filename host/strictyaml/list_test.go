package strictyaml

import (
	"encoding/json"
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestListIsSplitIntoItems(t *testing.T) {
	for name, c := range map[string]struct {
		text          string
		before, after string
		items         []string // nil: it is not split
	}{
		"as kubectl prints it": {"kind: List\nitems:\n- a: 1\n  b: |\n    - x\n- c: 2\nmetadata:\n  x: 1\n", "kind: List\n", "metadata:\n  x: 1\n", []string{"- a: 1\n  b: |\n    - x\n", "- c: 2\n"}},
		"indented":             {"items:\n  - a: 1\n    b: 2\n\n  # c\n  - c: 2", "", "", []string{"  - a: 1\n    b: 2\n\n  # c\n", "  - c: 2"}},
		"empty item":           {"items:\n-\n- b\n", "", "", []string{"-\n", "- b\n"}},
		"in flow style":        {"items: [1]\n", "", "", nil},
		"no list":              {"items:\n  a: 1\n", "", "", nil},
		"nothing":              {"a: 1\n", "", "", nil},
		"nothing below":        {"items:\n", "", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			before, items, after := splitItems(c.text)
			if !reflect.DeepEqual(items, c.items) || c.items != nil && (before != c.before || after != c.after) {
				t.Errorf("got %q, %q, %q", before, items, after)
			}
		})
	}
}

// FuzzList compares a list that is converted item by item with one that is converted as a whole.
func FuzzList(f *testing.F) {
	for _, text := range []string{
		"kind: List\nitems:\n- a: 1\n- c: 2\nmetadata: {}\n",
		"a: \"x\nitems:\n- b\n- c\n\"\n", // inside a quoted scalar
		"a: |\n x\nitems:\n- b: 'x\n- c: y'\n", "items:\n- a\n- b\nitems:\n- c\n- d\n", "a: 1\nitems:\n- a\n- b\na: 2\n",
		"items:\n- {a: [\n- b]}\n- c\n", "%YAML 1.1\n---\nitems:\n- yes\n- 0x1F\n", "items:\n- a\n-\n", "? a\nitems:\n- a\n- b\n: c\n", "items:\n- &x a\n- *x\n",
		"items:\n- a: >\n  x\n- b\n# c\n- c\n", "items:\n  - a\n - b\n", "items:\n- a\n\t- b\n- c\n", "items:\n- a\n- b\n...\n", "items:\n- a\r\n- b\r\n", "items:\n- ? a\n- b\n", "a: b\n c\nitems:\n- x\n- y\n", " 0: \nitems:\n-\n- ", "items:\n- \n- \n&0", "~\nitems:\n- x\n- y\n", "---\nitems:\n- x\n- y\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range SplitYAML(text) {
			if hasAlias(d.Text) {
				continue
			}
			got := d.listToJSON()
			if got == nil {
				continue
			}
			want, err := yaml.YAMLToJSONStrict([]byte(d.Text))
			if err != nil {
				t.Fatalf("%q: %s, but as a whole: %v", d.Text, got, err)
			}
			a, twiceA, _ := ParseJSON(got)
			b, twiceB, _ := ParseJSON(want)
			if !reflect.DeepEqual(a, b) || len(twiceA) != len(twiceB) {
				t.Fatalf("%q:\n%s, as a whole:\n%s", d.Text, got, want)
			}
		}
	})
}

// FuzzDecode compares the strict decoder with the tolerant one: where it accepts a text, both return the same, and nothing is to report.
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
			want, errs := decodeTolerantly[outer]([]byte(d.Text))
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
