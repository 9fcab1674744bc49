// Package strict reads YAML and JSON the way an operator wants to be told about mistakes: every one of them, each with
// its full path. Decoders stop at the first, know no index, or let unknown fields pass.
package strict

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

// Tree decodes JSON that is known to be well-formed into maps, lists, strings, bools and json.Numbers, and gives the
// paths of keys that stand twice in an object; the last one holds.
func Tree(raw []byte) (tree any, twice []string) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return readValue(dec, "", &twice), twice
}

func readValue(dec *json.Decoder, path string, twice *[]string) any {
	token, err := dec.Token()
	if err != nil {
		return nil
	}
	switch token {
	case json.Delim('{'):
		m := map[string]any{}
		for dec.More() {
			key, _ := dec.Token()
			k, _ := key.(string)
			if _, has := m[k]; has {
				*twice = append(*twice, Join(path, k))
			}
			m[k] = readValue(dec, Join(path, k), twice)
		}
		_, _ = dec.Token()
		return m
	case json.Delim('['):
		list := []any{}
		for i := 0; dec.More(); i++ {
			list = append(list, readValue(dec, path+"["+strconv.Itoa(i)+"]", twice))
		}
		_, _ = dec.Token()
		return list
	}
	return token
}

// Problem is a place where a tree and a type differ. The place is lost unless Unknown is set: then the type has no
// such field.
type Problem struct {
	Path    string
	Err     error
	Unknown bool
}

// Error gives "path: what is wrong".
func (p Problem) Error() string {
	if p.Path == "" {
		return p.Err.Error()
	}
	return p.Path + ": " + p.Err.Error()
}

// Unwrap gives the cause.
func (p Problem) Unwrap() error { return p.Err }

// Fit decodes a tree into a T. What does not fit is left at its zero value, in lists without moving the others; what
// T does not have is left out. The tree is used up.
func Fit[T any](tree any) (*T, []Problem) {
	v, c := new(T), &checker{types: map[reflect.Type]map[string]reflect.Type{}}
	raw, err := json.Marshal(c.fit(tree, reflect.TypeFor[T](), ""))
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil { // fit has seen to it that this cannot be; if it can, nothing is lost in silence
		c.bad("", "%w", err)
	}
	return v, c.problems
}

// Covers tells whether what is wrong at path follows from something that Fit has reported as lost.
func Covers(problems []Problem, path string) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool {
		if p.Unknown || p.Path == "" || !strings.HasPrefix(path, p.Path) {
			return false
		}
		return path == p.Path || path[len(p.Path)] == '.' || path[len(p.Path)] == '['
	})
}

type checker struct {
	problems []Problem
	types    map[reflect.Type]map[string]reflect.Type // fields by JSON name
}

func (c *checker) bad(path, format string, args ...any) any {
	c.problems = append(c.problems, Problem{Path: path, Err: fmt.Errorf(format, args...)})
	return nil
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
			err := fmt.Errorf("unknown field%s", DidYouMean(k, slices.Collect(maps.Keys(types))))
			c.problems = append(c.problems, Problem{Path: Join(path, k), Err: err, Unknown: true})
			continue
		}
		m[k] = c.fit(m[k], ft, Join(path, k))
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
	return c.bad(path, "%s: %w", Describe(tree), err)
}

func (c *checker) no(tree any, wanted, path string) any {
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

// Join gives the path of a key.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
