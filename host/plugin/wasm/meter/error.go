package meter

import (
	"fmt"
	"strings"
)

// Error is the reason why a module is refused, and its location.
type Error struct {
	Section string // "code", "import", …; empty for the module as a whole
	Func    int    // index of the function, including imports; -1: none
	Name    string // of the function, from the name section; may be empty
	Offset  int    // of the byte in the section or, for a function, in its body; -1: unknown
	Err     error
}

// Error implements error, with section, function, offset and reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("module refused: ")
	if e.Section != "" {
		fmt.Fprintf(&b, "%s section: ", e.Section)
	}
	if e.Func >= 0 {
		fmt.Fprintf(&b, "function %d", e.Func)
		if e.Name != "" {
			fmt.Fprintf(&b, " (%s)", e.Name)
		}
		b.WriteString(": ")
	}
	if e.Offset >= 0 {
		fmt.Fprintf(&b, "at byte %d: ", e.Offset)
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

func refuse(format string, args ...any) error {
	return &Error{Func: -1, Offset: -1, Err: fmt.Errorf(format, args...)}
}
