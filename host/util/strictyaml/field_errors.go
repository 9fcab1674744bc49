package strictyaml

import (
	"fmt"
)

// MaxReported is how many errors of a kind are reported individually; further ones are counted.
const MaxReported = 20

// FieldError is a place where a tree does not match a type. The value there is dropped, unless Unknown is set: then the
// type has no such field.
type FieldError struct {
	Path    string
	Err     error
	Unknown bool
	Line    int // of the file; 0: not known
}

// Error returns "line n: path: error".
func (p FieldError) Error() string {
	text := p.Err.Error()
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Line > 0 {
		text = fmt.Sprintf("line %d: %s", p.Line, text)
	}
	return text
}

// Unwrap returns the cause.
func (p FieldError) Unwrap() error { return p.Err }

// FieldErrors are the places where a tree does not match a type.
type FieldErrors struct {
	// Reported has at most MaxReported dropped values and as many unknown fields.
	Reported                 []FieldError
	MoreDropped, MoreUnknown int // those that are not in Reported
	dropped                  map[string]bool
	unknownCount             int
}

// Covers reports whether the value at path or one that contains it was dropped.
func (m *FieldErrors) Covers(path string) bool {
	if len(m.dropped) == 0 {
		return false
	}
	for i := range len(path) {
		if i > 0 && (path[i] == '.' || path[i] == '[') && m.dropped[path[:i]] {
			return true
		}
	}
	return path != "" && m.dropped[path]
}

// Describe formats a value of a tree for an error message.
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
