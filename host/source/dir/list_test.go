package dir

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

func TestListIsSplitIntoItems(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		json  bool
		items []string // as line and text; nil: it is not split
	}{
		"as kubectl prints it":  {"apiVersion: v1\nitems:\n- a: 1\n  b: |\n    - x\n- c: 2\nkind: List\n", false, []string{"3- a: 1\n  b: |\n    - x\n", "6- c: 2\n"}},
		"indented":              {"kind: List\napiVersion: v1\nitems:\n  - a: 1\n    b: 2\n\n  # c\n  - c: 2", false, []string{"4  - a: 1\n    b: 2\n\n  # c\n", "8  - c: 2"}},
		"empty item":            {"kind: NodeList\napiVersion: v1\nitems:\n-\n- b\n", false, []string{"4-\n", "5- b\n"}},
		"in flow style":         {"kind: List\napiVersion: v1\nitems: [1, 2]\n", false, nil},
		"no list":               {"kind: List\napiVersion: v1\nitems:\n  a: 1\n", false, nil},
		"nothing below":         {"kind: List\napiVersion: v1\nitems:\n", false, nil},
		"not a List":            {"kind: ConfigMap\napiVersion: v1\nitems:\n- a\n- b\n", false, nil},
		"aliases":               {"kind: List\napiVersion: v1\nitems:\n- &x a\n- *x\n", false, nil},
		"items twice":           {"kind: List\napiVersion: v1\nitems:\n- a\n- b\nitems:\n- c\n- d\n", false, nil},
		"JSON":                  {"{\n\"items\": [{},\n [1],\"]\"], \"kind\": \"List\", \"apiVersion\": \"v1\"}", true, []string{"2{}", "3[1]", "3\"]\""}},
		"JSON, not a List":      {`{"items": [1, 2], "kind": "ConfigMap", "apiVersion": "v1"}`, true, nil},
		"JSON, items twice":     {`{"items": [1, 2], "kind": "List", "apiVersion": "v1", "items": []}`, true, nil},
		"JSON, items elsewhere": {`{"a": {"items": [1, 2]}, "kind": "List", "apiVersion": "v1"}`, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, d := range splitList(strictyaml.Document{Text: c.text, Line: 1}, c.json) {
				got = append(got, string(rune('0'+d.Line))+d.Text)
			}
			if !reflect.DeepEqual(got, c.items) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestOnlyChangedItemsOfAListAreDecoded(t *testing.T) {
	for name, text := range map[string]string{
		"a.yaml": "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: n1}\n- apiVersion: v1\n  kind: Node\n  metadata: {name: n2}\nkind: List\n",
		"a.json": `{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}]}`,
	} {
		d := newDirectory(t.TempDir())
		n1, n2, n3 := key{"Node", model.Name{Name: "n1"}}, key{"Node", model.Name{Name: "n2"}}, key{"Node", model.Name{Name: "n3"}}
		write(t, filepath.Join(d.root, name), text)
		scanAndMerge(t, d)
		before := d.last
		write(t, filepath.Join(d.root, name), strings.Replace(text, "n2", "n3", 1))
		changes, problems := scanAndMerge(t, d)
		if len(changes) != 2 || len(problems) > 0 || before[n2] == nil || d.last[n3] == nil || before[n1].object != d.last[n1].object {
			t.Errorf("%s: %v, %v", name, changes, problems)
		}
	}
}

// FuzzYAMLList compares a list that is converted item by item with one that is converted as a whole.
func FuzzYAMLList(f *testing.F) {
	for _, text := range []string{
		"kind: List\nitems:\n- a: 1\n- c: 2\nmetadata: {}\n",
		"a: \"x\nitems:\n- b\n- c\n\"\n", // inside a quoted scalar
		"a: |\n x\nitems:\n- b: 'x\n- c: y'\n", "items:\n- a\n- b\nitems:\n- c\n- d\n", "a: 1\nitems:\n- a\n- b\na: 2\n",
		"items:\n- {a: [\n- b]}\n- c\n", "%YAML 1.1\n---\nitems:\n- yes\n- 0x1F\n", "items:\n- a\n-\n", "? a\nitems:\n- a\n- b\n: c\n", "items:\n- &x a\n- *x\n",
		"items:\n- a: >\n  x\n- b\n# c\n- c\n", "items:\n  - a\n - b\n", "items:\n- a\n\t- b\n- c\n", "items:\n- a\n- b\n...\n", "items:\n- a\r\n- b\r\n", "items:\n- ? a\n- b\n", "a: b\n c\nitems:\n- x\n- y\n", " 0: \nitems:\n-\n- ", "items:\n- \n- \n&0", "~\nitems:\n- x\n- y\n", "---\nitems:\n- x\n- y\n",
		"{a: b,\nitems:\n- c\n- d\n}\n", "--- |\nitems:\n- a\n- b\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range strictyaml.SplitYAML(text) {
			head, items := splitYAMLList(d.Text)
			if head == nil {
				continue
			}
			got, _, _ := strictyaml.ParseJSON(head)
			m, ok := got.(map[string]any)
			if list, isList := m["items"].([]any); !ok || !isList || len(list) > 0 {
				continue
			}
			var all []any
			for _, s := range items {
				raw, err := yaml.YAMLToJSONStrict([]byte(d.Text[s.start:s.end]))
				if err != nil {
					return
				}
				item, _, _ := strictyaml.ParseJSON(raw[1 : len(raw)-1])
				all = append(all, item)
			}
			m["items"] = all
			raw, err := yaml.YAMLToJSONStrict([]byte(d.Text))
			if err != nil {
				t.Fatalf("%q: %v, but as a whole: %v", d.Text, got, err)
			}
			if want, _, _ := strictyaml.ParseJSON(raw); !reflect.DeepEqual(got, want) {
				t.Fatalf("%q:\n%v, as a whole:\n%v", d.Text, got, want)
			}
		}
	})
}
