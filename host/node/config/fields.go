package config

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// field is a field of the configuration that has no fields itself.
type field struct {
	path    string
	tag     reflect.StructTag
	value   reflect.Value
	restart bool
}

// eachField calls visit with all fields of a section, of those in it, and of the items of its lists. Sections that are absent
// have none.
func eachField(section reflect.Value, path string, restart bool, visit func(f field)) {
	for _, f := range strictyaml.Fields(section.Type()) {
		at, v := strictyaml.JoinPath(path, f.Name), section.FieldByIndex(f.Index)
		restart := restart || f.Tag.Get("restart") != ""
		switch {
		case f.Type.Kind() == reflect.Pointer && isSection(f.Type.Elem()):
			if !v.IsNil() {
				eachField(v.Elem(), at, restart, visit)
			}
		case isSection(f.Type):
			if !v.IsZero() || !strings.HasSuffix(f.Tag.Get("json"), ",omitzero") {
				eachField(v, at, restart, visit)
			}
		case f.Type.Kind() == reflect.Slice && isSection(f.Type.Elem()):
			for i := range v.Len() {
				eachField(v.Index(i), fmt.Sprintf("%s[%d]", at, i), restart, visit)
			}
		default:
			visit(field{at, f.Tag, v, restart})
		}
	}
}

// isSection reports whether a type is an object in the file, with fields of their own.
func isSection(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Struct && !p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) && !p.Implements(reflect.TypeFor[json.Unmarshaler]())
}

// check checks what the tags of a field say.
func (p *parser) check(f field) {
	if values := f.tag.Get("values"); values != "" {
		if err := oneOf(f.value.String(), strings.Split(values, ",")); err != nil {
			p.errorf(f.path, "%w", err)
		}
	}
	p.bounds(f)
	kind, optional := strings.CutSuffix(f.tag.Get("check"), "?")
	if kind == "" {
		return
	}
	checkText := func(path string, v reflect.Value) {
		if optional && v.String() == "" {
			return
		}
		text, err := checks[kind](p, v.String())
		if err != nil {
			p.errorf(path, "%w", err)
		}
		v.SetString(text)
	}
	if f.value.Kind() == reflect.String {
		checkText(f.path, f.value)
		return
	}
	for i := range f.value.Len() {
		checkText(fmt.Sprintf("%s[%d]", f.path, i), f.value.Index(i))
	}
}

// oneOf returns an error unless s is one of the values.
func oneOf(s string, values []string) error {
	if slices.Contains(values, s) {
		return nil
	}
	last := len(values) - 1
	return fmt.Errorf("%q: must be %s or %s%s", s, strings.Join(values[:last], ", "), values[last], spelling.DidYouMean(s, values))
}

// maxSeconds is the kernel's limit of a timeout: an int of jiffies, up to 1000 per second.
const maxSeconds = (1<<31 - 1) / 1000

// bounds checks the tags min and max.
func (p *parser) bounds(f field) {
	least, most := f.tag.Get("min"), f.tag.Get("max")
	if least == "" {
		return
	}
	if d, ok := f.value.Interface().(time.Duration); ok {
		// Minima are written as durations; "kernel" is a timeout in whole seconds, as the kernel stores it.
		shortest, _ := time.ParseDuration(least)
		longest, err := time.ParseDuration(most)
		switch {
		case d < shortest:
			p.errorf(f.path, "%s is less than %s", d, shortest)
		case d%time.Second != 0 && (most == "kernel" || f.tag.Get("unit") == "1s"):
			p.errorf(f.path, "%s is not a whole number of seconds", d)
		case most == "kernel" && d > maxSeconds*time.Second:
			p.errorf(f.path, "%s exceeds the kernel's maximum of %ds", d, maxSeconds)
		case err == nil && d > longest:
			p.errorf(f.path, "%s is more than %s", d, longest)
		}
		return
	}
	n := f.value.Int()
	low, _ := strconv.ParseInt(least, 10, 64)
	high, _ := strconv.ParseInt(cmp.Or(most, "2147483647"), 10, 64)
	switch {
	case n < 0 && low == 0 && most == "":
		p.errorf(f.path, "%d is negative", n)
	case n < low || n > high:
		p.errorf(f.path, "%d is not between %d and %d", n, low, high)
	}
}

// RestartError names fields whose change requires a restart. The other fields of the configuration can be in force.
type RestartError struct{ Fields []string }

// Error implements error.
func (e *RestartError) Error() string { return strings.Join(e.Fields, "\n") }

// WithFixed returns c with the fields of old that a reload does not change, and a *RestartError that names each that would be
// another one.
func (c *Config) WithFixed(old *Config) (*Config, error) {
	out, e, before := *c, &RestartError{}, map[string]reflect.Value{}
	eachField(reflect.ValueOf(old).Elem(), "", false, func(f field) { before[f.path] = f.value })
	eachField(reflect.ValueOf(&out).Elem(), "", false, func(f field) {
		if was := before[f.path]; f.restart && !f.value.Equal(was) {
			e.Fields = append(e.Fields, fmt.Sprintf("%s: change from %v to %v requires a restart", f.path, was, f.value))
			f.value.Set(was)
		}
	})
	if e.Fields == nil {
		return &out, nil
	}
	return &out, e
}

// file is the structure of the file.
type file struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Config
}

// Effective is a configuration with all defaults. Its JSON is that of a file, and parsing it returns the configuration.
type Effective struct{ *Config }

// MarshalJSON implements json.Marshaler.
func (e Effective) MarshalJSON() ([]byte, error) {
	text := jsonv2.MarshalFunc(func(d time.Duration) ([]byte, error) { return []byte(strconv.Quote(d.String())), nil })
	b, err := jsonv2.Marshal(file{APIVersion, Kind, *e.Config}, jsonv2.WithMarshalers(text), jsonv2.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	return b, nil
}

// Effective returns the configuration in the structure of its file, with all defaults, for encoding/json.
func (c *Config) Effective() Effective { return Effective{c.FileOnly()} }
