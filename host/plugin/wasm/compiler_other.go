//go:build !linux

package wasm

import (
	"errors"
	"fmt"
	"io"
)

// CompileMain is supported on Linux only.
func CompileMain(_ []string, _ io.Reader, stderr io.Writer) int {
	fmt.Fprintln(stderr, errors.ErrUnsupported)
	return 2
}

// checkConfinement is for CompileMain on Linux.
const checkConfinement = "check-confinement"
