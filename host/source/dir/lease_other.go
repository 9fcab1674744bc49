//go:build !linux

package dir

import "os"

// isOpenForWriting is supported on Linux only.
func isOpenForWriting(*os.File) bool { return false }
