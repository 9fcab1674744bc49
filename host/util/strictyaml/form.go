package strictyaml

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// Form is how DecodeForm decodes a file whose type is written for it.
type Form struct {
	// Text has the types that are texts in the file, beside those that implement encoding.TextUnmarshaler: a function returns the
	// JSON value for a text. Its errors, and those of UnmarshalText, quote the text.
	Text        map[reflect.Type]func(string) (any, error)
	MaxReported int // errors of a kind
}

// DecodeForm is Decode with tags of fields. A value that is absent, null, empty or of the wrong type is that of the tag default,
// a text or JSON; with the tag empty an empty text is a value. With the tag required it must exist: the tag says what it is.
// Structs whose tag json has omitzero may be absent; others have the defaults of their fields.
func DecodeForm[T any](raw []byte, f Form) (*T, *FieldErrors) {
	return decode[T](raw, &checker{instead: func(string) any { return nil }, maxReported: f.MaxReported, form: &f})
}

// fill sets the value of a field that is absent.
func (c *checker) fill(m map[string]any, f *reflect.StructField, path string) {
	v := m[f.Name]
	_, keepEmpty := f.Tag.Lookup("empty")
	list, isList := v.([]any)
	keys, isMap := v.(map[string]any)
	switch {
	case isList && len(list) == 0, isMap && len(keys) == 0 && f.Type.Kind() == reflect.Map:
		delete(m, f.Name)
	case v != nil && (v != "" || keepEmpty):
		return
	}
	at := JoinPath(path, f.Name)
	if what, ok := f.Tag.Lookup("required"); ok && !c.errs.Covers(at) {
		c.drop(at, "%s", strings.TrimSuffix("required: "+what, ": "))
	}
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch def, ok := f.Tag.Lookup("default"); {
	case ok && json.Valid([]byte(def)):
		m[f.Name], _, _ = ParseJSON([]byte(def))
	case ok:
		m[f.Name] = c.check(def, f.Type, at)
	case v == nil && f.Type.Kind() == reflect.Struct && options != "omitzero" && !c.isText(f.Type):
		m[f.Name] = c.check(map[string]any{}, f.Type, at)
	}
}

// isText reports whether a type is a text in the file.
func (c *checker) isText(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return c.form.Text[t] != nil || p.Implements(textUnmarshaler) && !p.Implements(jsonUnmarshaler)
}

// text returns the JSON value of a text.
func (c *checker) text(tree any, t reflect.Type, path string) any {
	s, ok := tree.(string)
	if !ok {
		return c.wrongType(tree, "a string (quote it)", path)
	}
	var err error
	if parse := c.form.Text[t]; parse != nil {
		tree, err = parse(s)
	} else {
		err = reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s))
	}
	if err != nil {
		return c.refuse("", err, path)
	}
	return tree
}

// refuse drops a value that its type has refused, for each error that is joined. A FieldError is about a part of the value.
// prefix is what other errors do not say of it.
func (c *checker) refuse(prefix string, err error, path string) any {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			c.refuse(prefix, err, path)
		}
		return c.instead(path)
	}
	if len(c.errs.dropped) >= c.maxReported {
		return c.drop(path, "")
	}
	if f, ok := err.(FieldError); ok { //nolint:errorlint // nothing wraps it
		return c.drop(path+f.Path, "%w", f.Err)
	}
	return c.drop(path, "%s%w", prefix, err)
}
