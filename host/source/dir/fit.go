package dir

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

	"github.com/sluice-proxy/sluice/host/source"
)

// readTree decodes JSON that is known to be well-formed into maps, lists, strings, bools and json.Numbers, and names
// the keys that stand twice in an object.
func readTree(raw []byte) (tree any, twice []string) {
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
				*twice = append(*twice, join(path, k))
			}
			m[k] = readValue(dec, join(path, k), twice)
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

// checker makes a tree fit a Go type: what does not fit becomes null, what the type does not have is taken out, and
// each is a problem with its path. encoding/json would stop at the first, without an index in its path.
type checker struct {
	object   string
	problems []source.Problem
	lost     []string // the paths of what became null
}

// fit decodes a tree into a T, with what does not fit left at its zero value.
func fit[T any](c *checker, m map[string]any) *T {
	v := new(T)
	tree := c.fit(m, reflect.TypeFor[T](), "")
	raw, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil { // fit has seen to it that this cannot be; if it can, the object is not lost in silence
		c.problems = append(c.problems, source.Problem{Object: c.object, Err: err})
	}
	return v
}

// covers tells whether what is wrong at a path follows from something that was lost.
func (c *checker) covers(path string) bool {
	return slices.ContainsFunc(c.lost, func(lost string) bool {
		return path == lost || strings.HasPrefix(path, lost) && (path[len(lost)] == '.' || path[len(lost)] == '[')
	})
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
				had := len(c.lost)
				if m[k] = c.fit(m[k], t.Elem(), path+"["+k+"]"); len(c.lost) > had && m[k] == nil {
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
	types := map[string]reflect.Type{}
	fieldTypes(t, types)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		ft, ok := types[k]
		if !ok {
			delete(m, k)
			c.problems = append(c.problems, source.Problem{
				Object: c.object, Field: join(path, k), Err: fmt.Errorf("unknown field: ignored"), Warning: true,
			})
			continue
		}
		m[k] = c.fit(m[k], ft, join(path, k))
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
	c.problems = append(c.problems, source.Problem{Object: c.object, Field: path, Err: fmt.Errorf("%s: %w", describe(tree), err)})
	c.lost = append(c.lost, path)
	return nil
}

func (c *checker) no(tree any, wanted, path string) any {
	c.problems = append(c.problems, source.Problem{
		Object: c.object, Field: path, Err: fmt.Errorf("%s is not %s", describe(tree), wanted),
	})
	c.lost = append(c.lost, path)
	return nil
}

// describe names a value of a tree for people.
func describe(tree any) string {
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

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}
