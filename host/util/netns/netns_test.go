package netns

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func current(t *testing.T) string {
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestCallerStaysInItsNamespace, whatever namespace the function runs in; a socket keeps that of the function.
func TestCallerStaysInItsNamespace(t *testing.T) {
	home := current(t)
	var inside string
	var file *os.File
	err := DoInNew(func() (err error) {
		inside = current(t)
		file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if errors.Is(err, unix.EPERM) && os.Getenv("CI") == "" {
		t.Skip("may not create network namespaces")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if inside == home {
		t.Error("the function ran in the caller's namespace")
	}
	failure := errors.New("no")
	for ns, want := range map[int]string{0: home, int(file.Fd()): inside} {
		got := ""
		if err := Do(ns, func() error { got = current(t); return failure }); err != failure || got != want {
			t.Errorf("%d: in %s, %v, want %s", ns, got, err, want)
		}
	}
	if err := Do(-1, func() error { t.Error("the function ran"); return nil }); !errors.Is(err, unix.EBADF) {
		t.Errorf("no namespace: %v", err)
	}
	if got := current(t); got != home {
		t.Errorf("the caller is in %s", got)
	}
}
