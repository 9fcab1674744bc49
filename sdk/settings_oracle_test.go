package sdk

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// unmarshalSettings is an implementation of ParseSettings with encoding/json and reflection, the reference in tests. The fields
// are those of the struct that into points to, with their names and ranges in tags:
//
//	Percent int64 `json:"percent" range:"1,100"`
func unmarshalSettings(settings []byte, into any) error {
	if len(bytes.TrimSpace(settings)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(settings))
	var object json.RawMessage
	err := d.Decode(&object)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("invalid JSON at byte %d: %s", syntax.Offset, strings.TrimPrefix(syntax.Error(), "json: "))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("invalid JSON: unexpected end")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("unexpected text after the JSON object, at byte %d", d.InputOffset())
	}
	return unmarshalValue(object, reflect.ValueOf(into).Elem(), "", "")
}

// unmarshalValue parses JSON into a value; path is that of its field, "" for the settings themselves, and limits its range. It
// goes through objects and lists by itself, because encoding/json ignores the case of names, and its errors have no index.
func unmarshalValue(text json.RawMessage, into reflect.Value, path, limits string) error {
	kind := into.Kind()
	switch d := into.Addr().Interface().(type) {
	case *Duration:
		if string(text) == "null" {
			return nil
		}
		return unmarshalDuration(text, d, path, limits)
	case json.Unmarshaler, encoding.TextUnmarshaler, *[]byte:
		kind = reflect.Invalid
	}
	switch {
	case kind == reflect.Pointer && string(text) != "null":
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		return unmarshalValue(text, into.Elem(), path, limits)
	case kind == reflect.Struct:
		return unmarshalStruct(text, into, path)
	case kind == reflect.Slice && string(text) != "null":
		return unmarshalSlice(text, into, path, limits)
	case kind == reflect.Map && string(text) != "null":
		return unmarshalMap(text, into, path, limits)
	}
	if err := json.Unmarshal(text, into.Addr().Interface()); err != nil {
		return typeError(err, path)
	}
	if limits == "" || kind == reflect.Pointer || string(text) == "null" {
		return nil
	}
	return checkRange(into, path, limits)
}

var durationSyntax = regexp.MustCompile("^([0-9]{1,5}(h|m|s|ms)){1,4}$") // of GEP-2257

func unmarshalDuration(text json.RawMessage, into *Duration, path, limits string) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return errors.New(strings.Replace(typeError(err, path).Error(), "want a string", "want a duration such as 30s or 1m30s", 1))
	}
	d, err := time.ParseDuration(s)
	if err != nil || !durationSyntax.MatchString(s) {
		return fmt.Errorf("%s: %q is not a duration such as 30s or 1m30s", path, s)
	}
	low, high, _ := strings.Cut(limits, ",")
	least, _ := time.ParseDuration(low)
	most, _ := time.ParseDuration(high)
	if d < least || d > most {
		return fmt.Errorf("%s: %v is not %s to %s", path, Duration(d), low, high)
	}
	*into = Duration(d)
	return nil
}

func unmarshalStruct(text json.RawMessage, into reflect.Value, path string) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return typeError(err, path)
	}
	for _, f := range reflect.VisibleFields(into.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		value, named := object[name]
		if !named || !f.IsExported() || name == "-" {
			continue
		}
		delete(object, name)
		if err := unmarshalValue(value, into.FieldByIndex(f.Index), joinPath(path, name), f.Tag.Get("range")); err != nil {
			return err
		}
	}
	if len(object) == 0 {
		return nil
	}
	first := slices.Sorted(maps.Keys(object))[0]
	if path == "" {
		return fmt.Errorf("unknown field %q", first)
	}
	return fmt.Errorf("%s: unknown field %q", path, first)
}

func unmarshalSlice(text json.RawMessage, into reflect.Value, path, limits string) error {
	var elements []json.RawMessage
	if err := json.Unmarshal(text, &elements); err != nil {
		return typeError(err, path)
	}
	list := reflect.MakeSlice(into.Type(), len(elements), len(elements))
	for i, element := range elements {
		if err := unmarshalValue(element, list.Index(i), path+"["+strconv.Itoa(i)+"]", limits); err != nil {
			return err
		}
	}
	into.Set(list)
	return nil
}

func unmarshalMap(text json.RawMessage, into reflect.Value, path, limits string) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return typeError(err, path)
	}
	result := reflect.MakeMapWithSize(into.Type(), len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		value := reflect.New(into.Type().Elem()).Elem()
		if err := unmarshalValue(object[name], value, joinPath(path, name), limits); err != nil {
			return err
		}
		result.SetMapIndex(reflect.ValueOf(name).Convert(into.Type().Key()), value)
	}
	into.Set(result)
	return nil
}

// joinPath returns the path of a field of an object.
func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// checkRange returns an error if a number is not in a range like 1,100.
func checkRange(v reflect.Value, path, limits string) error {
	low, high, _ := strings.Cut(limits, ",")
	least, err := strconv.ParseFloat(low, 64)
	most, err2 := strconv.ParseFloat(high, 64)
	if err != nil || err2 != nil || !v.CanConvert(reflect.TypeFor[float64]()) {
		return fmt.Errorf("%s: the plugin's tag range:%q is not a range of numbers", path, limits)
	}
	if n := v.Convert(reflect.TypeFor[float64]()).Float(); n < least || n > most {
		return fmt.Errorf("%s: %v is not %s to %s", path, v, low, high)
	}
	return nil
}

// typeError returns an error of encoding/json that names the field.
func typeError(err error, path string) error {
	var kind *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &kind):
		return fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "json: "))
	case path == "":
		return fmt.Errorf("settings must be a JSON object, got %s", valueName(kind.Value))
	}
	return fmt.Errorf("%s: want %s, got %s", path, typeName(kind.Type.Kind()), valueName(kind.Value))
}

// typeName returns what a user calls values of a kind. Objects are parsed as maps.
func typeName(k reflect.Kind) string {
	switch {
	case k == reflect.Bool:
		return "true or false"
	case k >= reflect.Int && k <= reflect.Uint64:
		return "an integer"
	case k == reflect.Float32 || k == reflect.Float64:
		return "a number"
	case k == reflect.Slice || k == reflect.Array:
		return "a list"
	case k == reflect.Struct || k == reflect.Map:
		return "an object"
	}
	return "a string"
}

// valueName returns what a user calls a value that encoding/json describes.
func valueName(value string) string {
	switch value {
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	case "object":
		return "an object"
	}
	if number, ok := strings.CutPrefix(value, "number "); ok {
		return number
	}
	return "a " + value
}
