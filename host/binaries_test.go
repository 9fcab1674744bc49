package host_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepositoryHasNoBinaries checks that no executable, WebAssembly module or archive is tracked: all are built.
func TestRepositoryHasNoBinaries(t *testing.T) {
	list := exec.Command("git", "ls-files", "-z")
	list.Dir = ".."
	names, err := list.Output()
	if err != nil {
		t.Skipf("not a clone: git ls-files: %v", err)
	}
	magic := []string{"\x7fELF", "\x00asm", "\x1f\x8b", "PK\x03\x04", "!<arch>\n", "(\xb5/\xfd"}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		f, err := os.Open(filepath.Join("..", name))
		if os.IsNotExist(err) {
			continue // deleted, not committed yet
		} else if err != nil {
			t.Fatal(err)
		}
		start := make([]byte, 8)
		n, err := io.ReadFull(f, start)
		f.Close()
		if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range magic {
			if bytes.HasPrefix(start[:n], []byte(m)) {
				t.Errorf("%s is tracked and begins with %q: build it instead", name, m)
			}
		}
	}
}
