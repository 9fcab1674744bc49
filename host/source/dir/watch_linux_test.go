package dir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestWritesNextToTheDirectoryAreNotReceived reads from the kernel what it reports to the process: a program that writes millions
// of small pieces to a file next to the manifests, as nft does, must not wake up the source.
func TestWritesNextToTheDirectoryAreNotReceived(t *testing.T) {
	root := filepath.Join(t.TempDir(), "manifests")
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	r := start(t, root, Options{})
	r.waitForZones("n1=a")
	watches := func(path string) (n int) {
		var s syscall.Stat_t
		if err := syscall.Stat(path, &s); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob("/proc/self/fdinfo/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, _ := os.ReadFile(f) // may be closed
			for line := range strings.Lines(string(text)) {
				var wd, inode uint64
				if n, _ := fmt.Sscanf(line, "inotify wd:%x ino:%x", &wd, &inode); n == 2 && inode == s.Ino {
					return 1
				}
			}
		}
		return 0
	}
	if in, above := watches(root), watches(filepath.Dir(root)); in != 1 || above != 0 {
		t.Errorf("the directory is watched %d times, the one above %d times; want 1 and 0", in, above)
	}
}
