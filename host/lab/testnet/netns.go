package testnet

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const threadNetns = "/proc/thread-self/ns/net"

// newNetns makes a network namespace and leaves the caller in its own.
func newNetns() (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result)
	go func() {
		// Not unlocked: the thread, which is in the new namespace, ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("make a network namespace: %w", err)}
			return
		}
		f, err := os.Open(threadNetns)
		done <- result{f, err}
	}()
	r := <-done
	return r.f, r.err
}

// within runs f on a thread in the namespace ns, and then returns to the previous one. Sockets that f opens stay in ns.
func within(ns *os.File, f func() error) error {
	runtime.LockOSThread()
	back, err := os.Open(threadNetns)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the current network namespace: %w", err)
	}
	defer back.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	ferr := f()
	if err := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked, so the runtime ends it with the goroutine rather than use it for others.
		return fmt.Errorf("leave a network namespace: %w", err)
	}
	runtime.UnlockOSThread()
	return ferr
}
