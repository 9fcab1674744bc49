// Package need is for tests that cannot do without something: where it is missing they are skipped, and with CI set
// they fail.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// OK goes on when there is no error; else that says what is missing.
func OK(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Program goes on when there is such a program; a package of Debian has it.
func Program(t testing.TB, name, debian string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		OK(t, fmt.Errorf("%s is missing: apt-get install %s", name, debian))
	}
}
