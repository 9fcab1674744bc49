package wasm

import (
	"os/exec"
	"runtime"
	"syscall"
)

// runConfined runs cmd until this process ends at most. The child lowers its priority and its rights itself, see confineSelf: a thread of
// this process that did so to pass them on would have them too, and all others would wait for it whenever the Go runtime stops them.
func runConfined(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // a terminal's signals are for this process only
		Pdeathsig: syscall.SIGKILL, // if the thread ends that starts it
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}
