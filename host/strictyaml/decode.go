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
func ParseJSON(raw []byte) (tree any, duplicates []string, more int) {
	r := treeReader{dec: json.NewDecoder(bytes.NewReader(raw))}
	r.dec.UseNumber()
	return r.readValue(nil), r.duplicates, r.more
}

type treeReader struct {
	dec        *json.Decoder
	duplicates []string
	more       int
}

// pathElement is the last one of a path: most paths are never written.
type pathElement struct {
	parent *pathElement
	key    string
	index  int // when there is no key
}

func (s *pathElement) String() string {
	switch {
	case s == nil:
		return ""
	case s.index >= 0:
		return s.parent.String() + "[" + strconv.Itoa(s.index) + "]"
	}
	return JoinPath(s.parent.String(), truncateKey(s.key))
}

func (r *treeReader) readValue(path *pathElement) any {
	token, err := r.dec.Token()
	if err != nil {
		return nil
	}
	switch token {
	case json.Delim('{'):
		m := map[string]any{}
		here := pathElement{parent: path, index: -1}
		for r.dec.More() {
			key, _ := r.dec.Token()
			here.key, _ = key.(string)
			if _, has := m[here.key]; has {
				if len(r.duplicates) < MaxReported {
					r.duplicates = append(r.duplicates, here.String())
				} else {
					r.more++
				}
			}
			m[here.key] = r.readValue(&here)
		}
		_, _ = r.dec.Token()
		return m
	case json.Delim('['):
		list := []any{}
		for here := (pathElement{parent: path}); r.dec.More(); here.index++ {
			list = append(list, r.readValue(&here))
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
	dropped                  map[string]bool
	unknownCount             int
}

// Decode decodes a tree into a T. What does not fit is left at its zero value, in lists without moving the others; what
// T does not have is left out. The tree is used up.
func Decode[T any](tree any) (*T, *FieldErrors) {
	v, c := new(T), &checker{types: map[reflect.Type]map[string]reflect.Type{}, errs: &FieldErrors{dropped: map[string]bool{}}}
	raw, err := json.Marshal(c.check(tree, reflect.TypeFor[T](), ""))
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil { // fit has seen to it that this cannot be; if it can, nothing is lost in silence
		c.drop("", "%w", err)
	}
	return v, c.errs
}

// Dropped tells whether what stood at path did not fit.
func (m *FieldErrors) Dropped(path string) bool { return path != "" && m.dropped[path] }

// MarkDropped counts what stood at path as lost, and tells nothing.
func (m *FieldErrors) MarkDropped(path string) { m.dropped[path] = true }

// AnyDropped tells whether anything did not fit.
func (m *FieldErrors) AnyDropped() bool { return len(m.dropped) > 0 }

// Covers tells whether what is wrong at path follows from something that is lost.
func (m *FieldErrors) Covers(path string) bool {
	if len(m.dropped) == 0 {
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
	errs  *FieldErrors
	types map[reflect.Type]map[string]reflect.Type // fields by JSON name
}

func (c *checker) drop(path, format string, args ...any) any {
	m := c.errs
	if m.dropped[path] = true; len(m.dropped) > MaxReported {
		m.MoreDropped++
		return nil
	}
	m.Reported = append(m.Reported, FieldError{Path: path, Err: fmt.Errorf(format, args...)})
	return nil
}

func (c *checker) unknownField(path, key string, types map[string]reflect.Type) {
	m := c.errs
	if m.unknownCount++; m.unknownCount > MaxReported {
		m.MoreUnknown++
		return
	}
	err := fmt.Errorf("unknown field%s", DidYouMean(key, slices.Collect(maps.Keys(types))))
	m.Reported = append(m.Reported, FieldError{Path: JoinPath(path, truncateKey(key)), Err: err, Unknown: true})
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (c *checker) check(tree any, t reflect.Type, path string) any {
	if tree == nil {
		return nil
	}
	if p := reflect.PointerTo(t); p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler) {
		return c.unmarshals(tree, t, path)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return c.check(tree, t.Elem(), path)
	case reflect.Struct:
		if m, ok := tree.(map[string]any); ok {
			return c.checkFields(m, t, path)
		}
		return c.wrongType(tree, "an object", path)
	case reflect.Map:
		if m, ok := tree.(map[string]any); ok {
			for _, k := range slices.Sorted(maps.Keys(m)) {
				had := m[k] != nil
				if m[k] = c.check(m[k], t.Elem(), path+"["+k+"]"); had && m[k] == nil {
					delete(m, k) // a null would become a zero value under the key
				}
			}
			return m
		}
		return c.wrongType(tree, "an object", path)
	case reflect.Slice:
		if list, ok := tree.([]any); ok {
			for i := range list {
				list[i] = c.check(list[i], t.Elem(), path+"["+strconv.Itoa(i)+"]")
			}
			return list
		}
		if _, ok := tree.(string); ok && t.Elem().Kind() == reflect.Uint8 {
			return c.unmarshals(tree, t, path)
		}
		return c.wrongType(tree, "a list", path)
	case reflect.String:
		if _, ok := tree.(string); ok {
			return tree
		}
		return c.wrongType(tree, "text (quote it)", path)
	case reflect.Bool:
		if _, ok := tree.(bool); ok {
			return tree
		}
		return c.wrongType(tree, "true or false", path)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if n, ok := tree.(json.Number); ok {
			if _, err := strconv.ParseInt(string(n), 10, t.Bits()); err == nil {
				return tree
			}
		}
		return c.wrongType(tree, "a whole number", path)
	}
	return c.unmarshals(tree, t, path)
}

// checkFields fits the fields of a struct by their exact JSON names.
func (c *checker) checkFields(m map[string]any, t reflect.Type, path string) any {
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
			c.unknownField(path, k, types)
			continue
		}
		m[k] = c.check(m[k], ft, JoinPath(path, k))
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

// unmarshals lets a type with a JSON form of its own say what it takes: quantities, times, numbers or strings.
func (c *checker) unmarshals(tree any, t reflect.Type, path string) any {
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err == nil {
		return tree
	}
	if len(c.errs.dropped) >= MaxReported {
		return c.drop(path, "")
	}
	return c.drop(path, "%s: %w", Describe(tree), err)
}

func (c *checker) wrongType(tree any, wanted, path string) any {
	if len(c.errs.dropped) >= MaxReported {
		return c.drop(path, "")
	}
	return c.drop(path, "%s is not %s", Describe(tree), wanted)
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

// truncateKey keeps a key from filling a screen.
func truncateKey(key string) string {
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
