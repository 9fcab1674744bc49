package dir

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// TestWritesNextToTheDirectoryAreNotReceived reads from the kernel what it reports about the parent directory: a program
// that writes millions of small pieces to a file next to the manifests, as nft does, must not wake up the source.
func TestWritesNextToTheDirectoryAreNotReceived(t *testing.T) {
	root := filepath.Join(t.TempDir(), "manifests")
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	r := start(t, root, timedOptions)
	r.waitForZones("n1=a")
	var s syscall.Stat_t
	if err := syscall.Stat(filepath.Dir(root), &s); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range files {
		text, _ := os.ReadFile(f) // may be closed
		for line := range strings.Lines(string(text)) {
			var wd, inode, device, mask uint64
			if n, _ := fmt.Sscanf(line, "inotify wd:%x ino:%x sdev:%x mask:%x", &wd, &inode, &device, &mask); n == 4 && inode == s.Ino {
				found++
				if mask&(unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_ACCESS|unix.IN_OPEN|unix.IN_CLOSE) != 0 {
					t.Errorf("writes in the parent directory are reported: mask %#x", mask)
				}
			}
		}
	}
	if found != 1 {
		t.Errorf("the parent directory is watched %d times, want once", found)
	}
}

func FuzzInotifyEvents(f *testing.F) {
	event := func(mask uint32, name string) []byte {
		b := binary.NativeEndian.AppendUint32(nil, 1)
		b = binary.NativeEndian.AppendUint32(b, mask)
		b = binary.NativeEndian.AppendUint32(b, 0)
		padded := append([]byte(name), make([]byte, 16-len(name)%16)...)
		b = binary.NativeEndian.AppendUint32(b, uint32(len(padded)))
		return append(b, padded...)
	}
	for _, c := range []struct {
		mask uint32
		name string
		want fsnotify.Op
	}{
		{unix.IN_CREATE, "manifests", fsnotify.Create}, {unix.IN_MOVED_TO, "manifests", fsnotify.Create},
		{unix.IN_DELETE | unix.IN_ISDIR, "manifests", fsnotify.Remove}, {unix.IN_MOVED_FROM, "manifests", fsnotify.Rename},
		{unix.IN_CREATE, "manifests2", 0}, {unix.IN_IGNORED, "", 0}, {unix.IN_Q_OVERFLOW, "", fsnotify.Create},
	} {
		b := append(event(unix.IN_CREATE, "other"), event(c.mask, c.name)...)
		if got := opsOf(b, "manifests"); got != c.want {
			f.Errorf("mask %#x of %s: got %v, want %v", c.mask, c.name, got, c.want)
		}
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { opsOf(b, "manifests") })
}
