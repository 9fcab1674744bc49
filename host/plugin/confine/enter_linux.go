package confine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Policy is what a process keeps.
type Policy struct {
	Nice     int    // at least
	CPU      uint64 // seconds of CPU time, 0: no limit; then SIGXCPU, and SIGKILL a second later
	Memory   uint64 // bytes of writable memory
	Mapped   uint64 // bytes of addresses, 0: no limit. The Go runtime reserves more than it uses; what is only read takes tables of pages
	FileSize uint64 // bytes
	Files    uint64 // descriptors
	Folder   string // that it may read and write; "": no file at all
	Calls    []Rule // all others are refused, or …
	Kill     bool   // … end the process, with a line of the kernel's audit log that has the number of the call
}

// Enter confines this process, which has a process group of its own, for good. It keeps lower priorities and limits that the
// process already has. layers lists all parts; err is a failure that is not a lack of support. All threads that there are make
// some of its calls, which takes long on a busy machine, so most threads are made late.
func Enter(p *Policy) (layers []Layer, err error) {
	<-time.After(time.Nanosecond) // makes Go's poller, which needs a descriptor
	endFirst()                    // needs a file
	for _, l := range []struct {
		name string
		run  func(*Policy) error
	}{
		{Landlock, denyFiles}, // needs a descriptor
		{Limits, limit},
		{Capabilities, dropCapabilities},
		{Privileges, denyPrivileges},
		{Priority, lowerPriority},
		{Filter, filterCalls},
	} {
		err := l.run(p)
		if err != nil && (!missing(err) || l.name == Limits || l.name == Privileges) {
			return layers, fmt.Errorf("confine: %s: %w", l.name, err)
		}
		layer := Layer{Name: l.name}
		if err != nil {
			layer.Err = err.Error()
		}
		layers = append(layers, layer)
	}
	return layers, nil
}

// missing reports whether an error means that kernel, architecture, container runtime or build lack something.
func missing(err error) bool {
	for _, e := range []unix.Errno{unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.EPERM, unix.ENOTSUP} {
		if err == error(e) {
			return true
		}
	}
	return err == errArchitecture || err == errCgo || os.IsPermission(err)
}

// endFirst makes this the process that ends if the node's memory is full.
func endFirst() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) }

// lowerPriority sets the niceness of all threads, unless their priority is lower already: to raise it takes a right.
func lowerPriority(p *Policy) error {
	priority, err := unix.Getpriority(unix.PRIO_PGRP, 0) // 20 - nice
	if err != nil || 20-priority >= p.Nice {
		return err
	}
	return unix.Setpriority(unix.PRIO_PGRP, 0, p.Nice)
}

func limit(p *Policy) error {
	for _, l := range []struct {
		name     string
		resource int
		value    uint64
	}{
		{"CPU time", unix.RLIMIT_CPU, p.CPU},
		{"memory", unix.RLIMIT_DATA, p.Memory},
		{"addresses", unix.RLIMIT_AS, cmp.Or(p.Mapped, unix.RLIM_INFINITY)},
		{"file size", unix.RLIMIT_FSIZE, p.FileSize},
		{"core file", unix.RLIMIT_CORE, 0},
		{"files", unix.RLIMIT_NOFILE, p.Files},
	} {
		if l.resource == unix.RLIMIT_CPU && l.value == 0 {
			continue
		}
		var limit unix.Rlimit
		if err := unix.Getrlimit(l.resource, &limit); err != nil {
			return fmt.Errorf("read limit of %s: %w", l.name, err)
		}
		limit.Cur = min(limit.Cur, l.value)
		if l.resource == unix.RLIMIT_CPU {
			l.value++
		}
		limit.Max = min(limit.Max, l.value)
		if err := unix.Setrlimit(l.resource, &limit); err != nil {
			return fmt.Errorf("limit %s to %d: %w", l.name, limit.Cur, err)
		}
	}
	return nil
}

// dropCapabilities takes all capabilities from all threads.
func dropCapabilities(*Policy) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return allThreads(unix.SYS_CAPSET, pointer(&head), pointer(&none[0]))
}

// denyPrivileges sets no_new_privs, in a build with cgo that of this thread. The last threads are made before it: when they have
// made its call, and that of the filter, Go's runtime knows that they are idle, and makes no others.
func denyPrivileges(*Policy) error {
	if allThreads(unix.SYS_GETPID, 0, 0) == errCgo { // no filter either, and the C library's threads have stacks that count as memory
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	makeThreads()
	return allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
}

var errCgo = errors.New("not in a build with cgo: build with CGO_ENABLED=0")

// allThreads makes a system call in each thread: capabilities and Landlock are attributes of a thread. In a build with cgo, Go
// does not know all threads, and the C library makes calls that are in no list.
func allThreads(call, a, b uintptr) error {
	switch _, _, errno := syscall.AllThreadsSyscall6(call, a, b, 0, 0, 0, 0); errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return errCgo
	default:
		return errno
	}
}
