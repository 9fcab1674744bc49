package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CompileMain is the main function of the process that Options.Compiler starts. args are the arguments that the host has
// appended to it. It limits its own process, compiles the rewritten module on stdin into a folder, and returns the exit code.
func CompileMain(args []string, stdin io.Reader, stderr io.Writer) int {
	code, err := compileMain(args, stdin)
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return code
}

func compileMain(args []string, stdin io.Reader) (code int, err error) {
	if len(args) != 4 {
		return exitUsage, errors.New("compile a plugin: this command is run by sluice itself")
	}
	dir := args[0]
	var numbers [3]uint64 // seconds of CPU time, bytes of memory, pages of the guest's memory
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(args[i+1], 10, 63); err != nil {
			return exitUsage, err
		}
	}
	late := make(chan os.Signal, 1)
	signal.Notify(late, unix.SIGXCPU)
	go func() {
		<-late
		os.Exit(exitCPUTime)
	}()
	if err := confineSelf(numbers[0], numbers[1]); err != nil {
		return exitStorage, err
	}
	metered, err := io.ReadAll(io.LimitReader(stdin, maxMetered))
	if err != nil {
		return exitStorage, err
	}
	defer func() {
		if r := recover(); r != nil {
			code, err = exitRefused, fmt.Errorf("panic in the compiler: %v", r)
		}
	}()
	if err := CheckExecutable(); err != nil {
		return exitExecutable, err
	}
	// One worker: a second one would take as much memory again.
	switch err := compileTo(context.Background(), dir, metered, uint32(numbers[2])); {
	case isStorageError(err):
		return exitStorage, err
	case err != nil:
		return exitRefused, firstLine(err)
	}
	return 0, nil
}

const (
	exitUsage  = 2
	maxMetered = 128 << 20 // bytes: far above the limits of module package meter
	maxCode    = 128 << 20 // bytes of a file with compiled code
)

// niceness is the priority of the compiler. At 19 it takes a minute and more on two processors with four busy processes of the same
// control group, so that on a full node a plugin would not load; at 5 it takes 25 s, of which 3.5 are its own.
const niceness = 5

// confineSelf limits this process, which has a process group of its own: low priority, CPU seconds, bytes of memory, no network, no
// other programs. A lower priority and lower limits that it has already stay.
func confineSelf(seconds, memory uint64) error {
	if err := lowerPriority(); err != nil {
		return fmt.Errorf("set priority: %w", err)
	}
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
	debug.SetGCPercent(40) // memory matters more than time
	debug.SetMemoryLimit(int64(memory / 2))
	for _, l := range []struct {
		name     string
		resource int
		value    uint64
	}{
		{"CPU time", unix.RLIMIT_CPU, seconds}, // SIGXCPU
		{"memory", unix.RLIMIT_DATA, memory},   // not RLIMIT_AS: the Go runtime reserves more addresses than it uses
		{"file size", unix.RLIMIT_FSIZE, maxCode},
		{"core file", unix.RLIMIT_CORE, 0},
		{"files", unix.RLIMIT_NOFILE, 32},
	} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(l.resource, &limit); err != nil {
			return fmt.Errorf("read limit of %s: %w", l.name, err)
		}
		limit.Cur = min(limit.Cur, l.value)
		if l.resource == unix.RLIMIT_CPU {
			l.value++ // SIGKILL, if the process does not end itself
		}
		limit.Max = min(limit.Max, l.value)
		if err := unix.Setrlimit(l.resource, &limit); err != nil {
			return fmt.Errorf("limit %s to %d: %w", l.name, limit.Cur, err)
		}
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // if the node's memory is full, this process ends first
	return denySystemCalls()
}

// lowerPriority sets niceness for all threads, unless their priority is lower already: to raise it takes a right, which a service may lack.
func lowerPriority() error {
	priority, err := unix.Getpriority(unix.PRIO_PGRP, 0) // 20 - nice
	if err != nil || 20-priority >= niceness {
		return err
	}
	return unix.Setpriority(unix.PRIO_PGRP, 0, niceness)
}

// denySystemCalls installs a filter (seccomp) that refuses sockets, new programs and access to other processes. A kernel
// without filters, and processors other than those of the list, go without.
func denySystemCalls() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // SECCOMP_FILTER_FLAG_TSYNC: of all threads
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil
	}
	denied := []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_CONNECT, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE,
		unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_BPF, unix.SYS_MOUNT, unix.SYS_UNSHARE, unix.SYS_SETNS,
		unix.SYS_IO_URING_SETUP, unix.SYS_KEYCTL, unix.SYS_ADD_KEY}
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jumpIfEqual := func(k uint32, then, otherwise int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: uint8(then), Jf: uint8(otherwise)}
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	// struct seccomp_data: the number of the call at 0, the architecture at 4. Another architecture's calls are all denied,
	// and so are those of the x32 ABI, whose numbers have bit 30.
	n := len(denied)
	filter := []unix.SockFilter{load(4), jumpIfEqual(arch, 0, n+3), load(0),
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 1 << 30, Jt: uint8(n + 1)}}
	for i, call := range denied {
		filter = append(filter, jumpIfEqual(call, n-i, 0))
	}
	filter = append(filter, ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 && errno != unix.ENOSYS && errno != unix.EINVAL {
		return fmt.Errorf("install the filter of system calls: %w", errno)
	}
	return nil
}
