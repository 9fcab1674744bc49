package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestLoadRefusesOversizedCheckpoint(t *testing.T) {
	f := checkpointFile(filepath.Join(t.TempDir(), "checkpoint.json"))
	if _, err := f.Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	if err := f.Store([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if text, err := f.Load(); err != nil || string(text) != "{}" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Truncate(string(f), 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Load(); err == nil || !strings.Contains(err.Error(), "larger than 256 MiB") {
		t.Errorf("error %v", err)
	}
	if _, err := checkpointFile(t.TempDir()).Load(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

func TestFullDiskKeepsTheOldCheckpoint(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skipf("needs /dev/full, where every write finds the disk full: %v", err)
	}
	f := checkpointFile(filepath.Join(t.TempDir(), "checkpoint.json"))
	if err := f.Store([]byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", string(f)+".new"); err != nil {
		t.Fatal(err)
	}
	if err := f.Store([]byte("new")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(string(f) + ".new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what could not be written is still there: %v", err)
	}
	if text, err := f.Load(); err != nil || string(text) != "old" {
		t.Errorf("%q, %v", text, err)
	}
	if err := f.Store([]byte("new")); err != nil {
		t.Errorf("room again: %v", err)
	}
}
