package fswatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

// TestErrorsHoldNobodyUp: a folder is moved and removed before its events are read, so that fsnotify fails to end its watch, with
// its lock held, while nobody reads errors.
func TestErrorsHoldNobodyUp(t *testing.T) {
	root := t.TempDir()
	busy, moved := filepath.Join(root, "busy"), filepath.Join(root, "moved")
	w, err := New(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{busy, moved} {
		if err := errors.Join(os.Mkdir(d, 0o755), w.Add(d)); err != nil {
			t.Fatal(err)
		}
	}
	const files = 5
	for i := range files { // the events that follow wait behind those
		if err := os.Mkdir(filepath.Join(busy, fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Rename(moved, moved+"2"), os.Remove(moved+"2")); err != nil {
		t.Fatal(err)
	}
	for range files {
		<-w.Events
	}
	done := make(chan error, 1)
	go func() {
		for slices.Contains(w.WatchList(), moved) { // until its event has been read
			runtime.Gosched()
		}
		done <- w.Add(busy)
	}()
	testenv.Eventually(t, "Add", func() bool { return len(done) == 1 })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := <-w.Errors; !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	w.Close()
}
