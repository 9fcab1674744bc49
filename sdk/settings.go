package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// UnmarshalSettings reads a policy's settings, a JSON object, into the struct that into points to. What the settings do not name
// keeps its value, so set defaults first. A field that the struct does not have is an error, as is one of another
// type: both name the field. Empty settings change nothing.
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
		return fmt.Errorf("%s: a JSON %s is not a %s", kind.Field, kind.Value, kind.Type)
	case errors.As(err, &kind):
		return fmt.Errorf("a JSON %s is not an object of settings", kind.Value)
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON at byte %d: %s", syntax.Offset, strings.TrimPrefix(syntax.Error(), "json: "))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("not JSON: it ends too early")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more text after the object, at byte %d", d.InputOffset())
	}
	return nil
}
