package wasm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CheckExecutable returns an error if memory that was writable cannot become executable in this process, as the engine needs it
// for machine code.
func CheckExecutable() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil // no memory: an error of the engine
	}
	err = unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC)
	_ = unix.Munmap(page)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return notExecutable(err)
	}
	return nil
}

func notExecutable(cause error) error {
	return fmt.Errorf("executable memory is not permitted here (SELinux execmem, MemoryDenyWriteExecute or seccomp: %w): plugins cannot run; "+
		"Services follow the default rules", cause)
}
