package agent

import (
	"os"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// TestMain is also the processes in which plugins run and are compiled.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "plugin-process" {
		os.Exit(wasm.ProcessMain(os.Args[2:], os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == "killed-process" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // as by the kernel when the node has no memory left
	}
	if len(os.Args) > 2 && os.Args[1] == "waiting-compiler" { // for a writer of the FIFO that the argument names
		_, _ = os.ReadFile(os.Args[2])
		os.Exit(wasm.CompileMain(os.Args[3:], os.Stdin, os.Stderr))
	}
	os.Exit(m.Run())
}
