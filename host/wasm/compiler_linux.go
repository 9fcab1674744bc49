package wasm

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// runConfined runs cmd with the lowest priority, without the right to gain privileges, and until this process ends at
// most. A child inherits these attributes from the thread that starts it, so it is started by a thread of its own.
func runConfined(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // a terminal's signals are for this process only
		Pdeathsig: syscall.SIGKILL, // if the thread ends
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread's priority cannot be raised again
		done <- confineAndRun(cmd)
	}()
	return <-done
}

func confineAndRun(cmd *exec.Cmd) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil { // 0 is the calling thread
		return fmt.Errorf("set priority: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return cmd.Run()
}
