// Package manifest is what a module says of itself: title, version, licence, role, inputs and the schema of its settings. An
// author writes it as a file plugin.json beside the source; the build puts it into the custom section "sluice" of the module,
// where hosts and tools read it without running the module.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Version is the version of the format: a host refuses all others.
const Version = 1

// Limits of a manifest.
const (
	MaxLen      = 64 << 10 // bytes of the section, and of the file
	maxSettings = 256      // fields, those of lists, maps and objects included
	maxDepth    = 6        // of lists, maps and objects within each other
	maxValues   = 64
	maxName     = 63
	maxText     = 200
)

// Manifest is what a module says of itself.
type Manifest struct {
	Version int    `json:"manifest"`
	Title   string `json:"title"`
	Release string `json:"version"`
	Licence string `json:"licence"` // an SPDX expression
	Role    string `json:"role"`    // a name of abi.Role
	// Needs are the inputs that the plugin may ask for, by name: with some settings it may ask for less.
	Needs []string `json:"needs,omitempty"`
	// Counters are the counters of the plugin, at most abi.MaxCounters.
	Counters []Counter `json:"counters,omitempty"`
	// Settings is the schema of the settings; nil: the module does not say, and only the plugin checks them.
	Settings []Setting `json:"settings"`
}

// Counter is a counter of a plugin: a value of the label counter of the metric sluice_plugin_counter_total.
type Counter struct {
	Name string `json:"name"` // small letters, digits and _
	Text string `json:"text"`
}

// inputs are the names of the inputs that there are.
var inputs = []string{
	"connections", "outcomes", "nodes", "podNames", "endpointState", "podLabels", "podAnnotations", "podCPU", "nodeLabels", "serviceLabels", "serviceAnnotations",
	"namespaceLabels", "endpointLoad",
}

// since are the minor versions of the ABI that have added inputs, and counters. The others are of version 2.0.
var since = map[string]uint16{"endpointState": 1, "nodeLabels": 1, "namespaceLabels": 1, "endpointLoad": 1, "counters": 1}

// Needs returns the names of the inputs that there are.
func Needs() []string { return slices.Clone(inputs) }

// CheckMinor returns an error if a manifest lists what the minor version of the ABI that its module has does not have: such a
// module reads and writes nothing of it.
func (m *Manifest) CheckMinor(minor uint16) error {
	listed := slices.Clone(m.Needs)
	if len(m.Counters) > 0 {
		listed = append(listed, "counters")
	}
	var later []string
	for _, name := range listed {
		if since[name] > minor {
			later = append(later, fmt.Sprintf("%s (%d.%d)", name, abi.Major, since[name]))
		}
	}
	if len(later) == 0 {
		return nil
	}
	return fmt.Errorf("it has ABI version %d.%d, and its manifest lists what a later version has added: %s", abi.Major, minor, strings.Join(later, ", "))
}

// ABIRole returns the role.
func (m *Manifest) ABIRole() abi.Role { r, _ := abi.ParseRole(m.Role); return r }

// Parse parses the content of the section. Only the bytes that Encode writes are accepted: so there are no unknown and no
// repeated fields, no other spelling of their names, and no invalid UTF-8.
func Parse(content []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := decode(content, m); err != nil {
		return nil, err
	}
	if !bytes.Equal(content, m.Encode()) {
		return nil, errors.New("not in canonical form: 'sluice plugin embed' writes it")
	}
	return m, m.check()
}

// ParseFile parses a file plugin.json. Its errors have the line.
func ParseFile(text []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := decode(text, m); err != nil {
		return nil, err
	}
	if err := repeated(json.NewDecoder(bytes.NewReader(text))); err != nil {
		return nil, err
	}
	return m, m.check()
}

func decode(text []byte, m *Manifest) error {
	if len(text) > MaxLen {
		return fmt.Errorf("%d bytes, the limit is %d", len(text), MaxLen)
	}
	if !utf8.Valid(text) {
		return errors.New("invalid UTF-8")
	}
	var version struct {
		Version *int `json:"manifest"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&version); err != nil {
		return withLine(text, d, err)
	}
	switch {
	case version.Version == nil:
		return errors.New("manifest: missing: the version of the format, " + fmt.Sprint(Version))
	case *version.Version != Version:
		return fmt.Errorf("manifest: version %d of the format is unknown, want %d", *version.Version, Version)
	}
	d = json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return withLine(text, d, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text after the JSON object")
	}
	return nil
}

// withLine adds the line to an error of a decoder.
func withLine(text []byte, d *json.Decoder, err error) error {
	at := d.InputOffset()
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
		err = fmt.Errorf("%s: got a %s", kind.Field, kind.Value)
	}
	if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
		at = int64(max(0, bytes.Index(text, []byte(name))))
	}
	line := 1 + bytes.Count(text[:min(int(at), len(text))], []byte("\n"))
	return fmt.Errorf("line %d: %s", line, short(strings.TrimPrefix(err.Error(), "json: ")))
}

// repeated returns an error if an object has a name twice, whatever its case: json.Decoder would take the last.
func repeated(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil || t != json.Delim('{') && t != json.Delim('[') {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		if t == json.Delim('{') {
			name, err := d.Token()
			if err != nil {
				return err
			}
			text := strings.ToLower(name.(string)) // the decoder has accepted the text: names are strings
			if seen[text] {
				return fmt.Errorf("the field %q exists twice", short(name.(string)))
			}
			seen[text] = true
		}
		if err := repeated(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// Encode returns the content of the section: the same for the same manifest.
func (m *Manifest) Encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil // a raw value is not JSON: impossible after decode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// check returns what is wrong with a manifest, with the path of the field.
func (m *Manifest) check() error {
	for _, f := range []struct{ name, text string }{{"title", m.Title}, {"version", m.Release}, {"licence", m.Licence}} {
		if err := checkText(f.text); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if _, ok := abi.ParseRole(m.Role); !ok {
		return fmt.Errorf("role: %q is none of %s", short(m.Role), strings.Join(abi.RoleNames(), ", "))
	}
	for i, n := range m.Needs {
		switch {
		case !slices.Contains(Needs(), n):
			return fmt.Errorf("needs[%d]: %q is none of %s", i, short(n), strings.Join(Needs(), ", "))
		case slices.Contains(m.Needs[:i], n):
			return fmt.Errorf("needs[%d]: %q is there twice", i, n)
		}
	}
	if err := checkCounters(m.Counters); err != nil {
		return err
	}
	left := maxSettings
	return checkFields(m.Settings, "settings", maxDepth, &left)
}

func checkCounters(counters []Counter) error {
	if len(counters) > abi.MaxCounters {
		return fmt.Errorf("counters: %d, the limit is %d", len(counters), abi.MaxCounters)
	}
	for i, c := range counters {
		wrong := func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }
		switch {
		case c.Name == "" || len(c.Name) > maxName || strings.ContainsFunc(c.Name, wrong) || c.Name[0] < 'a':
			return fmt.Errorf("counters[%d].name: %q: want a small letter, then small letters, digits and _, at most %d", i, short(c.Name), maxName)
		case slices.ContainsFunc(counters[:i], func(d Counter) bool { return d.Name == c.Name }):
			return fmt.Errorf("counters[%d].name: %q is there twice", i, c.Name)
		}
		if err := checkText(c.Text); err != nil {
			return fmt.Errorf("counters[%d].text: %w", i, err)
		}
	}
	return nil
}

// checkText checks a line of text for people.
func checkText(s string) error {
	switch {
	case s == "":
		return errors.New("missing")
	case len(s) > maxText:
		return fmt.Errorf("%d bytes, the limit is %d", len(s), maxText)
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.TrimSpace(s) != s:
		return fmt.Errorf("%q is not one line of printable text", short(s))
	}
	return nil
}

// short bounds a text of others in an error.
func short(s string) string {
	if len(s) > 100 {
		return strings.ToValidUTF8(s[:100], "") + "…"
	}
	return s
}
