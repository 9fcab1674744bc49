package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// ParseSettings returns defaults with the fields that settings name replaced, see UnmarshalSettings. Call it in Configure, once for
// each of the settings of an instance.
func ParseSettings[T any](settings []byte, defaults T) (T, error) {
	err := UnmarshalSettings(settings, &defaults)
	return defaults, err
}

// UnmarshalSettings parses a policy's settings, a JSON object, into the struct that into points to. Fields that the settings
// do not name keep their value, so set defaults first. An unknown field or a wrong type is an error that names the field.
// Empty settings change nothing.
func UnmarshalSettings(settings []byte, into any) error {
	if len(bytes.TrimSpace(settings)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(settings))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field != "":
		return fmt.Errorf("%s: want %s, got %s", kind.Field, typeName(kind.Type.Kind()), valueName(kind.Value))
	case errors.As(err, &kind):
		return fmt.Errorf("settings must be a JSON object, got %s", kind.Value)
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
	return nil
}

// typeName returns what a user calls values of a kind.
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
