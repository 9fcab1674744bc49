package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	if _, err := checkpointFile(t.TempDir()).Load(); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a folder: %v", err)
	}
}

func TestCheckpointInAFolderOfEveryUserIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	f := checkpointFile(filepath.Join(dir, "checkpoint.json"))
	if err := os.WriteFile(string(f), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := f.Load()
	for _, err := range []error{err, f.Store(nil)} {
		if err == nil || !strings.Contains(err.Error(), "checkpoint: folder "+dir+": every user may write to it") {
			t.Error(err)
		}
	}
}
