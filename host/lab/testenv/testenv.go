// Package testenv states what a test requires of the machine. A test whose requirement is missing is skipped; with CI set
// in the environment it fails.
package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Require returns if err is nil. Otherwise it skips the test, or fails it in CI; err names the missing feature or program.
func Require(t testing.TB, err error) {
	t.Helper()
	requireIf(t, os.Getenv("CI") != "", err)
}

// RequireOfTestKernels is Require for a feature that the kernel of the machine need not have, but those of the test guests do.
func RequireOfTestKernels(t testing.TB, err error) {
	t.Helper()
	requireIf(t, os.Getenv("SLUICE_VM") != "", err)
}

// requireIf fails the test if there is an error, or skips it if the machine need not have what is missing.
func requireIf(t testing.TB, must bool, err error) {
	t.Helper()
	switch {
	case err == nil:
	case must:
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// OnceForAllKernels skips a test in a virtual machine with -short: what it checks does not depend on the kernel, and it runs
// outside.
func OnceForAllKernels(t testing.TB) {
	t.Helper()
	if os.Getenv("SLUICE_VM") != "" && testing.Short() {
		t.Skip("does not depend on the kernel")
	}
}

// RequireProgram requires a program in PATH. debian names the packages that contain it.
func RequireProgram(t testing.TB, name, debian string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		Require(t, fmt.Errorf("%s is missing: apt-get install %s", name, debian))
	}
}

// DependOnSources makes go test's cached result of the calling test depend on all folders that this module's programs are
// built from. Tests that run such a program call it; otherwise go test would reuse the result of an older program.
func DependOnSources(t testing.TB) {
	t.Helper()
	root := root(t)
	for _, top := range []string{"cmd/sluice", "host", "plugins", "sdk", "deploy"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}

// root returns the folder of this module.
func root(t testing.TB) string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return root
		}
		up := filepath.Dir(root)
		if up == root {
			t.Fatal("no go.mod above the working directory")
		}
		root = up
	}
}
