package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
		return fmt.Errorf("%s: want %s, got JSON %s", kind.Field, kind.Type, kind.Value)
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
