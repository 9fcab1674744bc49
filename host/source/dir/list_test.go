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
		"as kubectl prints it":  {"apiVersion: v1\nitems:\n- a: 1\n  b: |\n    - x\n\n- c: 2\nkind: List\nmetadata:\n  resourceVersion: \"\"\n", false, []string{"3  a: 1\n  b: |\n    - x\n\n", "7  c: 2\n"}},
		"other keys first":      {"kind: List\napiVersion: v1\nitems:\n- a\n- b", false, []string{"4  a\n", "5  b"}},
		"a comment":             {"kind: List\napiVersion: v1\nitems:\n- a\n# b\n- c\n", false, nil},
		"empty item":            {"kind: List\napiVersion: v1\nitems:\n-\n- c\n", false, nil},
		"indented":              {"kind: List\napiVersion: v1\nitems:\n  - c\n", false, nil},
		"in flow style":         {"apiVersion: v1\nitems:\n[1, 2]\nkind: List\n", false, nil},
		"not a List":            {"apiVersion: v1\nitems:\n- a\nkind: Listing\n", false, nil},
		"aliases":               {"apiVersion: v1\nitems:\n- &x a\n- *x\nkind: List\n", false, nil},
		"items twice":           {"apiVersion: v1\nitems:\n- a\nkind: List\nitems:\n- c\n", false, nil},
		"no items":              {"apiVersion: v1\nitems:\nkind: List\n", false, nil},
		"JSON":                  {"{\n\"items\": [{},\n [1],\"]\"], \"kind\": \"List\", \"apiVersion\": \"v1\"}", true, []string{"2{}", "3[1]", "3\"]\""}},
		"JSON, not a List":      {`{"items": [1, 2], "kind": "ConfigMap", "apiVersion": "v1"}`, true, nil},
		"JSON, items twice":     {`{"items": [1, 2], "kind": "List", "apiVersion": "v1", "items": []}`, true, nil},
		"JSON, items elsewhere": {`{"a": {"items": [1, 2]}, "kind": "List", "apiVersion": "v1"}`, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if c.items == nil {
				c.items = []string{"1" + c.text}
			}
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
		"a.json": `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
			{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}}]}`,
	} {
		d := &directory{root: t.TempDir()}
		n1, n2, n3 := key{"Node", model.Name{Name: "n1"}}, key{"Node", model.Name{Name: "n2"}}, key{"Node", model.Name{Name: "n3"}}
		write(t, filepath.Join(d.root, name), text)
		scanTwice(t, d)
		before := d.last
		write(t, filepath.Join(d.root, name), strings.Replace(text, "n2", "n3", 1))
		changes, problems := scanTwice(t, d)
		if len(changes) != 2 || len(problems) > 0 || before[n2] == nil || d.last[n3] == nil || before[n1].object != d.last[n1].object {
			t.Errorf("%s: %v, %v", name, changes, problems)
		}
	}
}

// FuzzYAMLList compares a list that is converted item by item with one that is converted as a whole.
func FuzzYAMLList(f *testing.F) {
	for _, items := range []string{
		"- a: 1\n- c: 2\n", "- a: \"x\n- b\n- c\n  \"\n", // inside a quoted scalar
		"- a: |\n x\n- b: 'x\n- c: y'\n", "- {a: [\n- b]}\n- c\n", "- yes\n- 0x1F\n", "- a\n- \n", "- ? a\n- b\n", "- &x a\n- *x\n",
		"- a: >\n    x\n- b\n\n- c\n", "- - a\n- b\n", "- a\n\t- b\n- c\n", "- a\r\n- b\r\n", "- a: b\n   c\n- d\n", "- \n- \n  &0\n", "- |2\n    a\n- b\n", "- # a\n  b: c\n- d\n",
	} {
		f.Add(items)
	}
	f.Fuzz(func(t *testing.T, items string) {
		text := "apiVersion: v1\nitems:\n" + items + "kind: List\n"
		docs := splitList(strictyaml.Document{Text: text, Line: 1}, false)
		if docs[0].Text == text {
			return
		}
		var got []any
		for _, d := range docs {
			raw, twice, err := d.ToJSON()
			if err != nil || twice != nil {
				return
			}
			item, _, _ := strictyaml.ParseJSON(raw)
			got = append(got, item)
		}
		raw, err := yaml.YAMLToJSONStrict([]byte(text))
		if err != nil {
			t.Fatalf("%q: %v, but as a whole: %v", text, got, err)
		}
		whole, _, _ := strictyaml.ParseJSON(raw)
		if want := whole.(map[string]any)["items"]; !reflect.DeepEqual(got, want) {
			t.Fatalf("%q:\n%v, as a whole:\n%v", text, got, want)
		}
	})
}
