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

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/sluice-proxy/sluice/host/spelling"
)

// Decode decodes well-formed JSON into a T. Values of the wrong type become zero values, in lists without moving other items; fields
// that T does not have are ignored. Of duplicate keys the last one is used.
func Decode[T any](raw []byte) (*T, *FieldErrors) {
	return DecodeInstead[T](raw, func(string) any { return nil })
}

// DecodeInstead is Decode, but for values of the wrong type that instead has another value for, which must be of the right type.
func DecodeInstead[T any](raw []byte, instead func(path string) any) (*T, *FieldErrors) {
	if v := decodeStrictly[T](raw); v != nil {
		return v, &FieldErrors{dropped: map[string]bool{}}
	}
	return decodeTolerantly[T](raw, instead)
}

func decodeTolerantly[T any](raw []byte, instead func(path string) any) (*T, *FieldErrors) {
	tree, _, _ := ParseJSON(raw)
	v, c := new(T), &checker{types: map[reflect.Type]map[string]reflect.Type{}, errs: &FieldErrors{dropped: map[string]bool{}}, instead: instead}
	raw, err := json.Marshal(c.check(tree, reflect.TypeFor[T](), ""))
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil { // cannot happen after check; if it does, the error is reported
		c.drop("", "%w", err)
	}
	return v, c.errs
}

// decodeStrictly decodes JSON in a tenth of the time, if there is nothing to report and nothing to drop; otherwise it returns nil.
func decodeStrictly[T any](raw []byte) *T {
	v := new(T)
	if jsonv2.Unmarshal(raw, v, jsonv2.RejectUnknownMembers(true)) != nil {
		return nil
	}
	if bytes.Contains(raw, []byte("null")) && hasZeroInMap(reflect.ValueOf(v)) {
		return nil // perhaps the null of a key, which is dropped with the key
	}
	return v
}

// hasZeroInMap reports whether a map in v has a key with a zero value.
func hasZeroInMap(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && hasZeroInMap(v.Elem())
	case reflect.Struct:
		for _, f := range v.Fields() {
			if hasZeroInMap(f) {
				return true
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if hasZeroInMap(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for _, e := range v.Seq2() {
			if e.IsZero() || hasZeroInMap(e) {
				return true
			}
		}
	}
	return false
}

type checker struct {
	errs    *FieldErrors
	types   map[reflect.Type]map[string]reflect.Type // by struct type: types of its fields by JSON name
	instead func(path string) any
}

func (c *checker) drop(path, format string, args ...any) any {
	m := c.errs
	if m.dropped[path] = true; len(m.dropped) > MaxReported {
		m.MoreDropped++
		return c.instead(path)
	}
	m.Reported = append(m.Reported, FieldError{Path: path, Err: fmt.Errorf(format, args...)})
	return c.instead(path)
}

func (c *checker) unknownField(path, key string, types map[string]reflect.Type) {
	m := c.errs
	if m.unknownCount++; m.unknownCount > MaxReported {
		m.MoreUnknown++
		return
	}
	err := fmt.Errorf("unknown field%s", spelling.DidYouMean(key, slices.Collect(maps.Keys(types))))
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
		return c.wrongType(tree, "a string (quote it)", path)
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
		return c.wrongType(tree, "an integer", path)
	case reflect.Float32, reflect.Float64:
		if n, ok := tree.(json.Number); ok {
			if _, err := strconv.ParseFloat(string(n), t.Bits()); err == nil {
				return tree
			}
		}
		return c.wrongType(tree, "a number", path)
	}
	return c.unmarshals(tree, t, path)
}

// checkFields checks the fields of a struct by their exact JSON names.
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

// unmarshals lets a type with its own JSON form decide what it accepts: quantities, times, int-or-string.
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
