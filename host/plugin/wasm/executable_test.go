package wasm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/turns"
)

const notPermitted = "executable memory is not permitted here (SELinux execmem, MemoryDenyWriteExecute or seccomp:"

// Where memory cannot become executable, the reason is the same in each case: with and without compiled code, in this process and
// in the one that compiles. No module is called invalid for it.
func TestNoPluginsWithoutExecutableMemory(t *testing.T) {
	requireChildren(t)
	dir := t.TempDir()
	module, cache := filepath.Join(dir, "module.wasm"), filepath.Join(dir, "cache")
	if err := os.WriteFile(module, goodWAT(t), 0o600); err != nil {
		t.Fatal(err)
	}
	load(t, newHost(t, Options{CacheDir: cache}), goodWAT(t), "")
	for _, how := range []string{"prctl", "seccomp"} {
		t.Run(how, func(t *testing.T) {
			out, err := exec.Command("/proc/self/exe", "unexecutable", how, module, cache).CombinedOutput()
			if strings.Contains(string(out), "not supported") {
				testenv.Require(t, fmt.Errorf("%s: %s", how, out))
			}
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// unexecutableChild forbids this process executable memory and then loads a module.
func unexecutableChild(args []string) int {
	err := func() error {
		if err := forbidExecutable(args[0]); err != nil {
			return fmt.Errorf("not supported: %w", err)
		}
		module, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		ctx := context.Background()
		for name, opts := range map[string]Options{
			"in this process": {CacheDir: noCache}, "compiled before": {CacheDir: args[2]}, "in a child": {CacheDir: noCache, Compiler: childCommand("compile")},
		} {
			h, err := New(ctx, opts)
			if err != nil {
				return err
			}
			_, err = h.Load(ctx, "test", module, nil)
			if err == nil || !strings.HasPrefix(err.Error(), notPermitted) {
				return fmt.Errorf("%s: error %w", name, err)
			}
			if err := h.Close(ctx); err != nil {
				return err
			}
		}
		// A child may be forbidden more than its parent.
		c := newCompiler(childCommand("compile"), DefaultCompileLimits(), 1024)
		dir, err := os.MkdirTemp("", "")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := c.compile(ctx, &turns.Turn{}, c.limits.timeout(), dir, module); err == nil || !strings.HasPrefix(err.Error(), notPermitted) {
			return fmt.Errorf("only in the child: error %w", err)
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// forbidExecutable forbids this process, and those that it starts, memory that was writable and becomes executable.
func forbidExecutable(how string) error {
	if how == "prctl" {
		return unix.Prctl(unix.PR_SET_MDWE, unix.PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := []unix.SockFilter{ // mprotect with PROT_EXEC
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MPROTECT, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16 + 2*8},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.PROT_EXEC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}

func TestExecutableMemoryIsPermittedHere(t *testing.T) {
	if err := CheckExecutable(); err != nil || errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
}
