// Package testenv is for tests that cannot do without something: where it is missing they are skipped, and with CI set
// they fail.
package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Require goes on when there is no error; else that says what is missing.
func Require(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// RequireProgram goes on when there is such a program; a package of Debian has it.
func RequireProgram(t testing.TB, name, debian string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		Require(t, fmt.Errorf("%s is missing: apt-get install %s", name, debian))
	}
}

// DependOnSources looks at all folders that programs of this module are built from. Tests that run such a program call it: go
// test would take the result of an older program for this one's.
func DependOnSources(t testing.TB) {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(root)
		if up == root {
			t.Fatal("no go.mod above the working directory")
		}
		root = up
	}
	for _, top := range []string{"cmd/sluice", "host", "plugins", "sdk", "deploy"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}
