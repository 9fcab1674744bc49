//go:build !linux

package safefile

import (
	"os"
	"time"
)

// pseudoFileSystem is supported on Linux only.
func pseudoFileSystem(*os.File) string { return "" }

// owner is supported on Linux only.
func owner(os.FileInfo) (uid int, ok bool) { return 0, false }

// Changed returns when the content of a file last changed, for all that is known.
func Changed(info os.FileInfo) time.Time { return info.ModTime() }
