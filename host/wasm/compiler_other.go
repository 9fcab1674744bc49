//go:build !linux

package wasm

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// runConfined is supported on Linux only.
func runConfined(*exec.Cmd) error { return errors.ErrUnsupported }

// CompileMain is supported on Linux only.
func CompileMain(_ []string, _ io.Reader, stderr io.Writer) int {
	fmt.Fprintln(stderr, errors.ErrUnsupported)
	return 2
}
