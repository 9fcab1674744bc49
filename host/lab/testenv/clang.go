package testenv

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Clang returns the command that compiles a plugin in C with sdk/c/sluice.h into the file out.
func Clang(t testing.TB, file, out string) *exec.Cmd {
	t.Helper()
	RequireProgram(t, "clang", "clang")
	RequireProgram(t, "wasm-ld", "lld")
	return exec.Command("clang", "--target=wasm32", "-O2", "-nostdlib", "-ffreestanding", "-fno-builtin", "-Wl,--no-entry",
		"-Wall", "-Wextra", "-Werror", "-I", filepath.Join(root(t), "sdk", "c"), file, "-o", out)
}
