//go:build !linux

package confine

import (
	"errors"
	"os/exec"
)

// Descriptors does nothing here.
func Descriptors() error { return nil }

// Run is supported on Linux only.
func Run(_ *exec.Cmd, started func(error)) error {
	if started != nil {
		started(errors.ErrUnsupported)
	}
	return errors.ErrUnsupported
}
