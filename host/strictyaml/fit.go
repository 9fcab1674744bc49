// Package strictyaml reads YAML and JSON the way an operator wants to be told about mistakes: every one of them, each with
// its full path. Decoders stop at the first, know no index, or let unknown fields pass.
package strictyaml

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// MaxReported is how many problems of a kind are worth telling; the others are counted.
const MaxReported = 20

// ParseJSON decodes JSON that is known to be well-formed into maps, lists, strings, bools and json.Numbers, and gives the
// paths of keys that stand twice in an object, Most of them and how many more; the last one holds.
func ParseJSON(raw []byte) (tree any, twice []string, more int) {
	r := reader{dec: json.NewDecoder(bytes.NewReader(raw))}
	r.dec.UseNumber()
	return r.value(nil), r.twice, r.more
}

type reader struct {
	dec   *json.Decoder
	twice []string
	more  int
}

// step is the last one of a path: most paths are never written.
type step struct {
	up    *step
	key   string
	index int // when there is no key
}

func (s *step) String() string {
	switch {
	case s == nil:
		return ""
	case s.index >= 0:
		return s.up.String() + "[" + strconv.Itoa(s.index) + "]"
	}
	return JoinPath(s.up.String(), clip(s.key))
}

func (r *reader) value(path *step) any {
	token, err := r.dec.Token()
	if err != nil {
		return nil
	}
	switch token {
	case json.Delim('{'):
		m := map[string]any{}
		here := step{up: path, index: -1}
		for r.dec.More() {
			key, _ := r.dec.Token()
			here.key, _ = key.(string)
			if _, has := m[here.key]; has {
				if len(r.twice) < MaxReported {
					r.twice = append(r.twice, here.String())
				} else {
					r.more++
				}
			}
			m[here.key] = r.value(&here)
		}
		_, _ = r.dec.Token()
		return m
	case json.Delim('['):
		list := []any{}
		for here := (step{up: path}); r.dec.More(); here.index++ {
			list = append(list, r.value(&here))
		}
		_, _ = r.dec.Token()
		return list
	}
	return token
}

// FieldError is a place where a tree and a type differ. The place is lost unless Unknown is set: then the type has no
// such field.
type FieldError struct {
	Path    string
	Err     error
	Unknown bool
}

// Error gives "path: what is wrong".
func (p FieldError) Error() string {
	if p.Path == "" {
		return p.Err.Error()
	}
	return p.Path + ": " + p.Err.Error()
}

// Unwrap gives the cause.
func (p FieldError) Unwrap() error { return p.Err }

// FieldErrors are the places where a tree and a type differ.
type FieldErrors struct {
	// Reported are Most of the places that are lost, and Most of those that are unknown.
	Reported                 []FieldError
	MoreDropped, MoreUnknown int // those that are not told
	lost                     map[string]bool
	unknown                  int
}

// Decode decodes a tree into a T. What does not fit is left at its zero value, in lists without moving the others; what
// T does not have is left out. The tree is used up.
func Decode[T any](tree any) (*T, *FieldErrors) {
	v, c := new(T), &checker{types: map[reflect.Type]map[string]reflect.Type{}, misfits: &FieldErrors{lost: map[string]bool{}}}
	raw, err := json.Marshal(c.fit(tree, reflect.TypeFor[T](), ""))
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil { // fit has seen to it that this cannot be; if it can, nothing is lost in silence
		c.bad("", "%w", err)
	}
	return v, c.misfits
}

// Dropped tells whether what stood at path did not fit.
func (m *FieldErrors) Dropped(path string) bool { return path != "" && m.lost[path] }

// MarkDropped counts what stood at path as lost, and tells nothing.
func (m *FieldErrors) MarkDropped(path string) { m.lost[path] = true }

// AnyDropped tells whether anything did not fit.
func (m *FieldErrors) AnyDropped() bool { return len(m.lost) > 0 }

// Covers tells whether what is wrong at path follows from something that is lost.
func (m *FieldErrors) Covers(path string) bool {
	if len(m.lost) == 0 {
		return false
	}
	for i := range len(path) {
		if (path[i] == '.' || path[i] == '[') && m.Dropped(path[:i]) {
			return true
		}
	}
	return m.Dropped(path)
}

type checker struct {
	misfits *FieldErrors
	types   map[reflect.Type]map[string]reflect.Type // fields by JSON name
}

func (c *checker) bad(path, format string, args ...any) any {
	m := c.misfits
	if m.lost[path] = true; len(m.lost) > MaxReported {
		m.MoreDropped++
		return nil
	}
	m.Reported = append(m.Reported, FieldError{Path: path, Err: fmt.Errorf(format, args...)})
	return nil
}

func (c *checker) stray(path, key string, types map[string]reflect.Type) {
	m := c.misfits
	if m.unknown++; m.unknown > MaxReported {
		m.MoreUnknown++
		return
	}
	err := fmt.Errorf("unknown field%s", DidYouMean(key, slices.Collect(maps.Keys(types))))
	m.Reported = append(m.Reported, FieldError{Path: JoinPath(path, clip(key)), Err: err, Unknown: true})
}

var (
	jsonReader = reflect.TypeFor[json.Unmarshaler]()
	textReader = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (c *checker) fit(tree any, t reflect.Type, path string) any {
	if tree == nil {
		return nil
	}
	if p := reflect.PointerTo(t); p.Implements(jsonReader) || p.Implements(textReader) {
		return c.custom(tree, t, path)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return c.fit(tree, t.Elem(), path)
	case reflect.Struct:
		if m, ok := tree.(map[string]any); ok {
			return c.fields(m, t, path)
		}
		return c.no(tree, "an object", path)
	case reflect.Map:
		if m, ok := tree.(map[string]any); ok {
			for _, k := range slices.Sorted(maps.Keys(m)) {
				had := m[k] != nil
				if m[k] = c.fit(m[k], t.Elem(), path+"["+k+"]"); had && m[k] == nil {
					delete(m, k) // a null would become a zero value under the key
				}
			}
			return m
		}
		return c.no(tree, "an object", path)
	case reflect.Slice:
		if list, ok := tree.([]any); ok {
			for i := range list {
				list[i] = c.fit(list[i], t.Elem(), path+"["+strconv.Itoa(i)+"]")
			}
			return list
		}
		if _, ok := tree.(string); ok && t.Elem().Kind() == reflect.Uint8 {
			return c.custom(tree, t, path)
		}
		return c.no(tree, "a list", path)
	case reflect.String:
		if _, ok := tree.(string); ok {
			return tree
		}
		return c.no(tree, "text (quote it)", path)
	case reflect.Bool:
		if _, ok := tree.(bool); ok {
			return tree
		}
		return c.no(tree, "true or false", path)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if n, ok := tree.(json.Number); ok {
			if _, err := strconv.ParseInt(string(n), 10, t.Bits()); err == nil {
				return tree
			}
		}
		return c.no(tree, "a whole number", path)
	}
	return c.custom(tree, t, path)
}

// fields fits the fields of a struct by their exact JSON names.
func (c *checker) fields(m map[string]any, t reflect.Type, path string) any {
	types := c.types[t]
	if types == nil {
		types = map[string]reflect.Type{}
		fieldTypes(t, types)
		c.types[t] = types
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		ft, ok := types[k]
		if !ok {
			delete(m, k)
			c.stray(path, k, types)
			continue
		}
		m[k] = c.fit(m[k], ft, JoinPath(path, k))
	}
	return m
}

func fieldTypes(t reflect.Type, into map[string]reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			fieldTypes(f.Type, into)
		case f.IsExported() && name != "" && name != "-":
			into[name] = f.Type
		}
	}
}

// custom lets a type with a JSON form of its own say what it takes: quantities, times, numbers or strings.
func (c *checker) custom(tree any, t reflect.Type, path string) any {
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err == nil {
		return tree
	}
	if len(c.misfits.lost) >= MaxReported {
		return c.bad(path, "")
	}
	return c.bad(path, "%s: %w", Describe(tree), err)
}

func (c *checker) no(tree any, wanted, path string) any {
	if len(c.misfits.lost) >= MaxReported {
		return c.bad(path, "")
	}
	return c.bad(path, "%s is not %s", Describe(tree), wanted)
}

// Describe names a value of a tree for people.
func Describe(tree any) string {
	switch v := tree.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("%.100q", v)
	}
	return fmt.Sprint(tree)
}

// clip keeps a key from filling a screen.
func clip(key string) string {
	if len(key) <= 200 {
		return key
	}
	return strings.ToValidUTF8(key[:200], "") + "…"
}

// JoinPath gives the path of a key.
func JoinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
