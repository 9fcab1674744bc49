package confine

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Descriptors keeps the descriptors that this process has inherited, except for standard input, output and error, from its
// children. A kernel before 5.11 does not know the call; the children then have them until they close them.
func Descriptors() error {
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != unix.ENOSYS && err != unix.EINVAL {
		return err
	}
	return nil
}

// Run runs cmd without environment in the root folder, until this process ends at most. It blocks the thread. Rights and priority
// are for the child itself to give up: a thread of this process that did so to pass them on would have them too, and all others
// would wait for it whenever the Go runtime stops them. started, if not nil, is called when the process has been started, or has
// not.
func Run(cmd *exec.Cmd, started func(error)) error {
	cmd.Env = []string{
		"GODEBUG=containermaxprocs=0,decoratemappings=0", // no files of the cgroup, no prctl for mappings
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // a terminal's signals are for this process only
		Pdeathsig: syscall.SIGKILL, // when the thread ends that starts it
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if started != nil {
		started(err)
	}
	if err != nil {
		return err
	}
	return cmd.Wait()
}
