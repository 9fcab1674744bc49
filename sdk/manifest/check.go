package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Problem is a setting that is not as the schema says.
type Problem struct {
	Path    string // such as groups[1].percent, "" for the settings themselves
	Message string
	// Unknown is a name that there is not, and Known are those that there are.
	Unknown string
	Known   []string
}

func (p Problem) Error() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// maxProblems bounds the problems that CheckSettings returns.
const maxProblems = 20

// CheckSettings returns what is wrong with settings, JSON text or nothing.
func (m *Manifest) CheckSettings(text []byte) []Problem {
	c := checker{most: maxProblems}
	if len(text) == 0 {
		text = []byte("{}")
	}
	switch {
	case !json.Valid(text):
		return []Problem{{Message: "invalid JSON"}}
	case string(text) == "null":
		text = []byte("{}")
	}
	if m.Settings != nil {
		c.fields(m.Settings, text, "")
	}
	return c.problems
}

type checker struct {
	problems []Problem
	most     int
}

func (c *checker) report(p Problem) {
	if len(c.problems) < c.most {
		c.problems = append(c.problems, p)
	}
}

func (c *checker) fields(fields []Setting, text json.RawMessage, path string) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		c.report(Problem{Path: path, Message: "want an object, got " + kindOf(trim(text))})
		return
	}
	var known []string
	for i := range fields {
		f := &fields[i]
		known = append(known, f.Name)
		v := trim(members[f.Name])
		switch {
		case len(v) > 0 && string(v) != "null":
			c.value(f, v, join(path, f.Name))
		case f.Required:
			c.report(Problem{Path: join(path, f.Name), Message: "missing"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.Contains(known, name) {
			message := fmt.Sprintf("unknown field %q", short(name))
			if len(known) == 0 && path == "" {
				message += ": the plugin has no settings"
			}
			c.report(Problem{Path: join(path, shown(name)), Message: message, Unknown: name, Known: known})
		}
	}
}

// value checks a value that is not null.
func (c *checker) value(s *Setting, text json.RawMessage, path string) {
	fail := func(format string, args ...any) { c.report(Problem{Path: path, Message: fmt.Sprintf(format, args...)}) }
	least, most, _ := s.bounds() // checked
	count := func(n int, unit string) {
		if float64(n) < least || float64(n) > most {
			fail("%d %s, want %s", n, unit, s.rangeText())
		}
	}
	switch s.Type {
	case Integer, Number, Percent, Duration:
		if n, err := s.quantity(text); err != nil {
			fail("%v", err)
		} else if n < least || n > most {
			fail("%s is not %s", strings.Trim(short(string(text)), `"`), s.rangeText())
		}
	case Boolean:
		if k := kindOf(text); k != "true" && k != "false" {
			fail("want true or false, got %s", k)
		}
	case Text:
		var v string
		if text[0] != '"' || json.Unmarshal(text, &v) != nil {
			fail("want a string, got %s", kindOf(text))
		} else if count(len(v), "bytes"); len(s.Values) > 0 && !slices.Contains(s.Values, v) {
			c.report(Problem{Path: path, Message: fmt.Sprintf("%q is none of %s", short(v), quoted(s.Values)), Unknown: v, Known: s.Values})
		}
	case List:
		var items []json.RawMessage
		if text[0] != '[' || json.Unmarshal(text, &items) != nil {
			fail("want a list, got %s", kindOf(text))
			return
		}
		count(len(items), "items")
		for i, item := range items {
			c.item(s.Items, item, path+"["+strconv.Itoa(i)+"]")
		}
	case Map:
		var items map[string]json.RawMessage
		if text[0] != '{' || json.Unmarshal(text, &items) != nil {
			fail("want an object, got %s", kindOf(text))
			return
		}
		count(len(items), "items")
		for _, name := range slices.Sorted(maps.Keys(items)) {
			c.item(s.Items, items[name], path+"["+shown(name)+"]")
		}
	case Object:
		if text[0] != '{' {
			fail("want an object, got %s", kindOf(text))
			return
		}
		c.fields(s.Fields, text, path)
	}
}

func (c *checker) item(s *Setting, text json.RawMessage, path string) {
	if len(c.problems) >= c.most {
		return
	}
	if text = trim(text); string(text) == "null" {
		c.report(Problem{Path: path, Message: "null"})
		return
	}
	c.value(s, text, path)
}

// shown returns a name from settings for a path.
func shown(name string) string {
	if name = short(name); strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

func trim(text json.RawMessage) json.RawMessage {
	return json.RawMessage(strings.TrimSpace(string(text)))
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func quoted(values []string) string {
	var out []string
	for _, v := range values {
		out = append(out, strconv.Quote(v))
	}
	return strings.Join(out, ", ")
}
