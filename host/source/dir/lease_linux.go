package dir

import (
	"os"

	"golang.org/x/sys/unix"
)

// isOpenForWriting reports whether a process has the file open for writing: the kernel then grants no read lease on it
// (fcntl(2), F_SETLEASE). It reports false if the kernel or the file system does not support leases.
func isOpenForWriting(f *os.File) bool {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return err == unix.EAGAIN
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}
