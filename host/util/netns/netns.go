// Package netns runs functions in network namespaces.
package netns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs f on a thread in the network namespace of a file descriptor; 0 is the current one.
func Do(ns int, f func() error) error {
	if ns == 0 {
		return f()
	}
	return onOwnThread(func() error {
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// DoInNew runs f in a new network namespace, which lives as long as f or a socket that f has opened.
func DoInNew(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create a network namespace: %w", err)
		}
		return f()
	})
}

// onOwnThread runs f on a thread that nothing else uses and that ends with f.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the runtime ends the thread with this goroutine
		done <- f()
	}()
	return <-done
}
