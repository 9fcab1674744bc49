package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Type is the type of a setting.
type Type string

// The types of settings.
const (
	Integer  Type = "integer"
	Number   Type = "number"   // with a fraction
	Percent  Type = "percent"  // a number from 0 to 100, unless Min and Max say otherwise
	Duration Type = "duration" // a text such as "30s" or "1m30s"
	Text     Type = "text"
	Boolean  Type = "boolean"
	List     Type = "list"   // of Items
	Map      Type = "map"    // of any names to Items
	Object   Type = "object" // with Fields
)

func types() []Type {
	return []Type{Integer, Number, Percent, Duration, Text, Boolean, List, Map, Object}
}

// Setting is a field of the settings, or what a list or map has.
type Setting struct {
	Name string `json:"name,omitempty"` // none for Items
	Type Type   `json:"type"`
	// Min and Max are inclusive: of a number, of a duration, of the bytes of a text, or of the number of items of a list or map.
	Min json.RawMessage `json:"min,omitempty"`
	Max json.RawMessage `json:"max,omitempty"`
	// Values are all texts that a text may be.
	Values   []string        `json:"values,omitempty"`
	Default  json.RawMessage `json:"default,omitempty"` // what the plugin takes if the field is absent or null
	Required bool            `json:"required,omitempty"`
	Items    *Setting        `json:"items,omitempty"`
	Fields   []Setting       `json:"fields,omitempty"`
	Text     string          `json:"text,omitempty"` // one line for people
}

func checkFields(fields []Setting, path string, depth int, left *int) error {
	for i := range fields {
		f := &fields[i]
		if !validName(f.Name) {
			return fmt.Errorf("%s[%d].name: %q is not a name: want a letter, then letters, digits, - and _, at most %d", path, i, short(f.Name), maxName)
		}
		at := path + "." + f.Name
		if slices.ContainsFunc(fields[:i], func(o Setting) bool { return strings.EqualFold(o.Name, f.Name) }) {
			return fmt.Errorf("%s: the name exists twice", at)
		}
		if err := checkText(f.Text); err != nil {
			return fmt.Errorf("%s.text: %w", at, err)
		}
		if err := f.check(at, depth, left); err != nil {
			return err
		}
	}
	return nil
}

// validName reports whether a name can be in a path of a setting, a flag, and a schema.
func validName(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c != '-' && c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// check returns what is wrong with a setting, such as a range without values, or a default outside of it.
func (s *Setting) check(at string, depth int, left *int) error {
	if *left--; *left < 0 {
		return fmt.Errorf("%s: more than %d settings", at, maxSettings)
	}
	if depth == 0 {
		return fmt.Errorf("%s: nested deeper than %d", at, maxDepth)
	}
	if !slices.Contains(types(), s.Type) {
		return fmt.Errorf("%s.type: %q is none of %s", at, short(string(s.Type)), joinTypes())
	}
	holds := s.Type == List || s.Type == Map
	ranged := s.Type != Boolean && s.Type != Object
	switch {
	case s.Items != nil != holds:
		return fmt.Errorf("%s.items: for lists and maps, which need it", at)
	case holds && (s.Items.Name != "" || s.Items.Default != nil || s.Items.Required):
		return fmt.Errorf("%s.items: has a name, a default, or is required: these are for fields", at)
	case len(s.Fields) > 0 != (s.Type == Object):
		return fmt.Errorf("%s.fields: for objects, which need it", at)
	case len(s.Values) > 0 && s.Type != Text:
		return fmt.Errorf("%s.values: only a text has values", at)
	case (s.Min != nil || s.Max != nil) && !ranged:
		return fmt.Errorf("%s: type %s has no range", at, s.Type)
	case s.Default != nil && s.Required:
		return fmt.Errorf("%s: has a default and is required", at)
	}
	least, most, err := s.bounds()
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", at, err)
	case least > most:
		return fmt.Errorf("%s: min is more than max", at)
	}
	if err := s.checkValues(); err != nil {
		return fmt.Errorf("%s.values: %w", at, err)
	}
	if holds {
		if err := s.Items.check(at+"[]", depth-1, left); err != nil {
			return err
		}
	}
	if err := checkFields(s.Fields, at, depth-1, left); err != nil {
		return err
	}
	if s.Default != nil {
		if string(s.Default) == "null" {
			return fmt.Errorf("%s.default: null", at)
		}
		c := checker{most: 1}
		if c.value(s, s.Default, ""); len(c.problems) > 0 {
			return fmt.Errorf("%s.default: %s", at, c.problems[0].Message)
		}
	}
	return nil
}

func (s *Setting) checkValues() error {
	if len(s.Values) > maxValues {
		return fmt.Errorf("%d, the limit is %d", len(s.Values), maxValues)
	}
	for i, v := range s.Values {
		if slices.Contains(s.Values[:i], v) {
			return fmt.Errorf("%q is there twice", short(v))
		}
		if v == "" {
			continue
		}
		if err := checkText(v); err != nil {
			return err
		}
	}
	return nil
}

func joinTypes() string {
	var out []string
	for _, t := range types() {
		out = append(out, string(t))
	}
	return strings.Join(out, ", ")
}

// maxInteger is what JSON's numbers hold exactly everywhere.
const maxInteger = 1<<53 - 1

// bounds returns the range; of a duration in nanoseconds.
func (s *Setting) bounds() (least, most float64, err error) {
	switch least, most = 0, math.MaxFloat64; s.Type {
	case Percent:
		most = 100
	case Integer:
		least, most = -maxInteger, maxInteger
	case Number:
		least = -math.MaxFloat64
	}
	for _, b := range []struct {
		name string
		text json.RawMessage
		into *float64
	}{{"min", s.Min, &least}, {"max", s.Max, &most}} {
		if b.text == nil {
			continue
		}
		var err error
		if *b.into, err = s.quantity(b.text); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	if s.Type == Text || s.Type == List || s.Type == Map {
		if least < 0 || least != math.Trunc(least) || most != math.MaxFloat64 && most != math.Trunc(most) {
			return 0, 0, errors.New("min and max: want how many, a whole number")
		}
	}
	return least, most, nil
}

// quantity returns a bound, or a value of a type that has bounds.
func (s *Setting) quantity(text json.RawMessage) (float64, error) {
	if s.Type == Duration {
		var d string
		if json.Unmarshal(text, &d) != nil {
			return 0, errors.New(`want a duration such as "30s", got ` + kindOf(text))
		}
		n, err := time.ParseDuration(d)
		if err != nil || !duration.MatchString(d) {
			return 0, fmt.Errorf(`want a duration such as "30s", got %q`, short(d))
		}
		return float64(n), nil
	}
	var n float64
	want := "a number"
	if s.Type == Integer {
		want = "an integer"
	}
	if err := json.Unmarshal(text, &n); err != nil || string(text) == "null" {
		return 0, errors.New("want " + want + ", got " + kindOf(text))
	}
	if s.Type == Integer && (n != math.Trunc(n) || math.Abs(n) > maxInteger) {
		return 0, errors.New("want an integer, got " + short(string(text)))
	}
	return n, nil
}

// duration is the syntax of the Gateway API (GEP-2257).
var duration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// kindOf names the type of a JSON value.
func kindOf(text json.RawMessage) string {
	switch text[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return string(text)
	case 'n':
		return "null"
	}
	return "a number"
}
