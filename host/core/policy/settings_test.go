package policy

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestBindingSettingsReplaceFieldsOfThePolicy(t *testing.T) {
	p := &Policy{Name: "p", Steps: []Step{{Plugin: "a", Settings: `{"x":1,"y":{"z":2}}`}, {Plugin: "b"}, {Plugin: "a"}}}
	q, err := p.WithSettings(map[string]string{"a": `{"y":3,"w":9007199254740993}`, "b": `{}`})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{q.Steps[0].Settings, q.Steps[1].Settings, q.Steps[2].Settings}
	if want := []string{`{"w":9007199254740993,"x":1,"y":3}`, `{}`, `{"w":9007199254740993,"y":3}`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if q.Steps[0].Own || p.Steps[0].Settings != `{"x":1,"y":{"z":2}}` {
		t.Errorf("%+v, %+v", q, p)
	}
	if _, err := p.WithSettings(map[string]string{"c": `{}`}); err == nil || !strings.Contains(err.Error(), `no plugin "c"`) {
		t.Error(err)
	}
}

func TestMergedSettingsAreBounded(t *testing.T) {
	p := &Policy{Name: "p", Steps: []Step{{Plugin: "a", Settings: `{"x":"` + strings.Repeat("x", maxMergedSettings) + `"}`, ServiceSettings: []string{"y"}}}}
	if _, err := p.withServiceSettings(`{"a":{"y":1}}`); err == nil || !strings.Contains(err.Error(), "the limit is 32768") {
		t.Error(err)
	}
}

// FuzzServiceSettings compares the settings of a Service with those that encoding/json would merge.
func FuzzServiceSettings(f *testing.F) {
	for text := range badTexts() {
		f.Add(text)
	}
	f.Add(`{"plugin0":{"weight":[1,{"a":null,"b":1e400}],"other":""}}`)
	f.Add("{\"plugin0\":{\"weight\":\"\xff\"}}")
	const base = `{"kept":1,"other":2,"weight":{"a":1}}`
	p := &Policy{Name: "p", Steps: []Step{{Plugin: "plugin0", Settings: base, ServiceSettings: []string{"other", "weight"}}}}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := p.withServiceSettings(text)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		var objects map[string]map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &objects); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		want := map[string]json.RawMessage{}
		if err := json.Unmarshal([]byte(base), &want); err != nil {
			t.Fatal(err)
		}
		maps.Copy(want, objects["plugin0"])
		s := q.Steps[0]
		if !sameJSON(t, s.Settings, want) {
			t.Errorf("%s becomes %s", text, s.Settings)
		}
		if s.Own != (len(objects["plugin0"]) > 0) || s.Own && s.PolicySettings != base {
			t.Errorf("%+v", s)
		}
		if len(text)+2 > model.MaxSettings {
			return
		}
		again, err := p.withServiceSettings(" " + text + "\n")
		if err != nil || again.Steps[0].Settings != s.Settings {
			t.Errorf("with white space: %v, %v", again, err)
		}
	})
}

// sameJSON compares JSON values regardless of their form. Numbers are compared as they are written.
func sameJSON(t *testing.T, text string, want map[string]json.RawMessage) bool {
	t.Helper()
	norm := func(text string) string {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	wanted, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	return norm(text) == norm(string(wanted))
}
