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

	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// Decode decodes well-formed JSON into a T. Values of the wrong type become zero values, in lists without moving other items;
// fields that T does not have are ignored. Of duplicate keys the last one is used.
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
	return decode[T](raw, &checker{instead: instead, maxReported: MaxReported})
}

func decode[T any](raw []byte, c *checker) (*T, *FieldErrors) {
	tree, _, _ := ParseJSON(raw)
	v := new(T)
	c.types, c.errs = map[reflect.Type]*structType{}, &FieldErrors{dropped: map[string]bool{}}
	raw, err := json.Marshal(c.check(tree, reflect.TypeFor[T](), ""))
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil { // cannot happen after check; if it does, the error is reported
		c.drop("", "%w", err)
	}
	return v, c.errs
}

// decodeStrictly decodes JSON in a tenth of the time, if there is nothing to report and nothing to drop; otherwise it returns
// nil.
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
	errs        *FieldErrors
	types       map[reflect.Type]*structType
	instead     func(path string) any
	maxReported int
	form        *Form // nil: tags other than json mean nothing
}

// structType is the fields of a struct.
type structType struct {
	types  map[string]reflect.Type // by JSON name
	fields []reflect.StructField
}

func (c *checker) drop(path, format string, args ...any) any {
	m := c.errs
	if m.dropped[path] = true; len(m.dropped) > c.maxReported {
		m.MoreDropped++
		return c.instead(path)
	}
	m.Reported = append(m.Reported, FieldError{Path: path, Err: fmt.Errorf(format, args...)})
	return c.instead(path)
}

func (c *checker) unknownField(path, key string, types map[string]reflect.Type) {
	m := c.errs
	if m.unknownCount++; m.unknownCount > c.maxReported {
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
	if p := reflect.PointerTo(t); c.form != nil && c.isText(t) {
		return c.text(tree, t, path)
	} else if p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler) {
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
	s := c.types[t]
	if s == nil {
		s = &structType{types: map[string]reflect.Type{}, fields: Fields(t)}
		for _, f := range s.fields {
			s.types[f.Name] = f.Type
		}
		c.types[t] = s
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		ft, ok := s.types[k]
		if !ok {
			delete(m, k)
			c.unknownField(path, k, s.types)
			continue
		}
		m[k] = c.check(m[k], ft, JoinPath(path, k))
	}
	if c.form != nil {
		for i := range s.fields {
			c.fill(m, &s.fields[i], path)
		}
	}
	return m
}

// Fields returns the fields of a struct that JSON has, with their names there. Those of embedded structs are among them.
func Fields(t reflect.Type) (out []reflect.StructField) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			for _, inner := range Fields(f.Type) {
				inner.Index = append(slices.Clone(f.Index), inner.Index...)
				out = append(out, inner)
			}
		case f.IsExported() && name != "" && name != "-":
			f.Name = name
			out = append(out, f)
		}
	}
	return out
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
	return c.refuse(Describe(tree)+": ", err, path)
}

func (c *checker) wrongType(tree any, wanted, path string) any {
	if len(c.errs.dropped) >= c.maxReported {
		return c.drop(path, "")
	}
	return c.drop(path, "%s is not %s", Describe(tree), wanted)
}
