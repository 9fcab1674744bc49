package dir

import (
	"os"

	"golang.org/x/sys/unix"
)

// beingWritten tells whether some process has the file open for writing: the kernel grants no read lease on it then
// (fcntl(2), F_SETLEASE). False when the kernel or the file system cannot tell.
func beingWritten(f *os.File) bool {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return err == unix.EAGAIN
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}
