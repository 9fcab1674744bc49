package agent

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU returns the CPU time that the calling thread has used, in user space and in the kernel.
func threadCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
