//go:build unix

package state

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSocketReplacesOnlyAStaleSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sock")
	stale := func() error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
		if err == nil {
			l.SetUnlinkOnClose(false)
			err = l.Close()
		}
		return err
	}
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		place func() error
		want  string // of the error; "": it is replaced
	}{
		{"nothing", func() error { return nil }, ""},
		{"a stale socket", stale, ""},
		{"a file", func() error { return os.WriteFile(path, nil, 0o600) }, "is not a socket"},
		{"a directory", func() error { return os.Mkdir(path, 0o700) }, "is not a socket"},
		{"a FIFO", func() error { return syscall.Mkfifo(path, 0o600) }, "is not a socket"},
		{"a link to a file", func() error { return os.Symlink(victim, path) }, "is not a socket"},
		{"a dangling link", func() error { return os.Symlink(path+".none", path) }, "is not a socket"},
		{"a link to a stale socket", func() error {
			return errors.Join(stale(), os.Rename(path, path+".other"), os.Symlink(path+".other", path))
		}, "is not a socket"},
		{"a listening socket", func() error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}, "in use by another sluice"},
		{"a datagram socket", func() error {
			c, err := net.ListenPacket("unixgram", path)
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		}, "in use by another program"},
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := c.place(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		before, _ := os.Lstat(path)
		l, err := listen(path)
		after, _ := os.Lstat(path)
		if l != nil {
			l.Close()
		}
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		case c.want == "" && after.Mode() != os.ModeSocket|0o600:
			t.Errorf("%s: mode %v", c.name, after.Mode())
		case c.want != "" && !os.SameFile(before, after):
			t.Errorf("%s: replaced", c.name)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("the link's target: %q, %v", text, err)
	}
}

func TestSocketInAFolderOfEveryUserIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	if l, err := listen(filepath.Join(dir, "sock")); err == nil || !strings.Contains(err.Error(), "every user may write to it") {
		if l != nil {
			l.Close()
		}
		t.Error(err)
	}
}

// TestStopRemovesTheSocket also when it comes before the server has begun, as at a start that fails.
func TestStopRemovesTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	for range 200 {
		stop, err := Serve(path, Agent{Metrics: http.NotFoundHandler()}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("after the stop, the socket is there: %v", err)
		}
	}
}
