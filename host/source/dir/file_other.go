//go:build !linux

package dir

import "os"

// isOpenForWriting is supported on Linux only.
func isOpenForWriting(*os.File) bool { return false }

func openNonblocking(path string) (*os.File, error) { return os.Open(path) }

// pseudoFileSystem is supported on Linux only.
func pseudoFileSystem(*os.File) string { return "" }
