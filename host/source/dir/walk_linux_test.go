package dir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPseudoFilesAreRejected(t *testing.T) {
	for target, want := range map[string]string{
		"/proc/kmsg":             "proc is a pseudo file system", // reading it blocks until the kernel logs something
		"/proc/self/status":      "proc is a pseudo file system",
		"/sys/kernel/mm/ksm/run": "sysfs is a pseudo file system",
	} {
		f, err := os.Open(target)
		if err != nil {
			t.Logf("%s: %v", target, err)
			continue
		}
		f.Close()
		root := t.TempDir()
		write(t, filepath.Join(root, "b.yaml"), node("n1", "z1"))
		if err := os.Symlink(target, filepath.Join(root, "a.yaml")); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			snap, problems, err := Load(root)
			if err != nil || len(snap.Nodes) != 1 || len(problems) != 1 || problems[0].File != "a.yaml" || !strings.Contains(problems[0].Error(), want) {
				t.Errorf("%s: %v, %v", target, problems, err)
			}
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%s: still being read", target)
		}
	}
}
