package nfnl

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNetns runs f on a thread in the network namespace of a file descriptor. Zero is the current one.
func InNetns(netns int, f func() (int, error)) (int, error) {
	if netns == 0 {
		return f()
	}
	runtime.LockOSThread()
	previous, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return 0, err
	}
	defer previous.Close()
	if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return 0, fmt.Errorf("enter the network namespace: %w", err)
	}
	n, ferr := f()
	if err := unix.Setns(int(previous.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked, so that the runtime ends it with this goroutine.
		return 0, errors.Join(ferr, fmt.Errorf("leave the network namespace: %w", err))
	}
	runtime.UnlockOSThread()
	return n, ferr
}

// OpenIsolated opens a Conn to a new network namespace, which lives as long as the Conn.
func OpenIsolated() (*Conn, error) {
	type result struct {
		conn *Conn
		err  error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread, which is in the new namespace, ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("create a network namespace: %w", err)}
			return
		}
		c, err := Open(0, DefaultSendBuffer)
		done <- result{c, err}
	}()
	r := <-done
	return r.conn, r.err
}
