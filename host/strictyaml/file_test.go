package strictyaml

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOnlyRegularFilesWithinTheLimitAreRead(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(in("good"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("large"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"good": "", "large": "larger than 2 MiB", "fifo": "not a regular file", ".": "is a directory", "gone": "no such file",
	} {
		got, err := ReadFile(in(name), 2<<20)
		switch {
		case want == "" && (err != nil || string(got) != "text"):
			t.Errorf("%s: %q, %v", name, got, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v instead of %q", name, err, want)
		}
	}
}
