package safefile_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/util/safefile"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyRegularFilesWithinTheLimitAreRead(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(in("good"), []byte("text"), 0o600))
	must(t, os.WriteFile(in("exact"), make([]byte, 2<<20), 0o600))
	must(t, os.WriteFile(in("large"), make([]byte, 2<<20+1), 0o600))
	must(t, os.WriteFile(in("sparse"), nil, 0o600))
	must(t, os.Truncate(in("sparse"), 1<<40))
	must(t, syscall.Mkfifo(in("fifo"), 0o600))
	l, err := net.Listen("unix", in("socket"))
	must(t, err)
	defer l.Close()
	links := map[string]string{"link": "good", "fifo link": "fifo", "zero": "/dev/zero", "kmsg": "/proc/kmsg", "status": "/proc/self/status", "loop": "loop"}
	for name, target := range links {
		must(t, os.Symlink(target, in(name)))
	}
	for name, want := range map[string]string{
		"good": "", "link": "", "exact": "", "large": "larger than 2 MiB", "sparse": "1048576 MiB, larger than 2 MiB", "fifo": "not a regular file",
		"fifo link": "not a regular file", "socket": "not a regular file", "zero": "not a regular file", ".": "is a directory", "gone": "no such file",
		"kmsg": "", "status": "proc is a pseudo file system", "loop": "too many levels",
	} {
		if name == "kmsg" { // reading it blocks until the kernel logs something; only root may open it
			want = "proc is a pseudo file system"
			if f, err := os.Open("/proc/kmsg"); err != nil {
				want = "kmsg"
			} else {
				f.Close()
			}
		}
		got, err := safefile.Read(in(name), 2<<20)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("read %s: %d bytes, %v; want %q", name, len(got), err, want)
		case strings.HasSuffix(name, "od") && string(got) != "text":
			t.Errorf("read %s: %q", name, got)
		}
		if cerr := safefile.Check(in(name), 2<<20); (cerr == nil) != (want == "") {
			t.Errorf("check %s: %v; read: %v", name, cerr, err)
		}
	}
}

func TestFileThatGrowsIsReadUpToTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, []byte("old"), 0o600))
	f, err := safefile.Open(path)
	must(t, err)
	defer f.Close()
	must(t, os.WriteFile(path, make([]byte, 1000), 0o600))
	if text, err := safefile.ReadAll(f, 1000); err != nil || len(text) != 1000 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

func TestReplaceFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "ours", "file")
	must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	must(t, safefile.Replace(path, []byte("first")))
	for _, name := range []string{path, path + ".new"} {
		_ = os.Remove(name)
		must(t, os.Symlink(victim, name))
	}
	must(t, safefile.Replace(path, []byte("second")))
	if text, _ := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("the link's target was written: %q", text)
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if text, err := safefile.ReadPrivate(path, 10); err != nil || string(text) != "second" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestFolderOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"open": 0o777, "sticky": 0o777 | os.ModeSticky, "drop": 0o733 | os.ModeSticky} {
		folder := filepath.Join(dir, name)
		must(t, os.Mkdir(folder, 0o755))
		must(t, os.WriteFile(filepath.Join(folder, "file"), []byte("planted"), 0o600))
		must(t, os.Chmod(folder, mode))
		_, err := safefile.OpenFolder(folder)
		_, rerr := safefile.ReadPrivate(filepath.Join(folder, "file"), 10)
		for _, err := range []error{err, rerr, safefile.Replace(filepath.Join(folder, "file"), nil)} {
			if err == nil || !strings.Contains(err.Error(), "every user may write to it") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	folder := filepath.Join(dir, "theirs")
	must(t, os.Mkdir(folder, 0o755))
	if err := os.Chown(folder, 65534, 65534); err != nil {
		t.Skipf("there is only one user in this user namespace: %v", err)
	}
	if err := safefile.Replace(filepath.Join(folder, "file"), nil); err == nil || !strings.Contains(err.Error(), "another user (uid 65534)") {
		t.Error(err)
	}
}

func TestFailedWriteKeepsTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, safefile.Replace(path, []byte("old")))
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4096, Max: limit.Max}))
	err := safefile.Replace(path, make([]byte, 8192)) // written in part
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(path + ".new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what could not be written is still there: %v", err)
	}
	if text, err := safefile.ReadPrivate(path, 10); err != nil || string(text) != "old" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, safefile.Replace(path, []byte("new")))
}

func TestTemporaryErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}))
	_, err := safefile.Read(path, 1)
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	if !safefile.IsTemporary(err) {
		t.Errorf("no descriptor: %v", err)
	}
	if _, err := safefile.Read(path+".gone", 1); safefile.IsTemporary(err) {
		t.Error(err)
	}
}
