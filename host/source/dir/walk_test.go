package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// problemTexts returns the problems of a directory that still has the Node n1.
func problemTexts(t *testing.T, root string) string {
	t.Helper()
	snap, problems, err := Load(root)
	if err != nil || snap.Nodes["n1"] == nil {
		t.Fatalf("%v, %d Nodes, %v", err, len(snap.Nodes), problems)
	}
	var out []string
	for _, p := range problems {
		out = append(out, p.Error())
	}
	return strings.Join(out, "\n")
}

func TestLinksOutOfTheDirectoryAreNotFollowed(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "manifests")
	write(t, filepath.Join(root, "sub/z.yaml"), node("n1", "z1"))
	write(t, filepath.Join(base, "other.yaml"), node("n2", "z1"))
	for link, to := range map[string]string{
		"a": "/", "b": "..", "sub/c": "../..", "d.yaml": "../other.yaml", "e.yaml": filepath.Join(base, "other.yaml"), "f.json": "/proc/self/status", // out of it
		"sub/loop": "../sub", "sub/root": "..", "again": "sub", "README.md": "nowhere", "n.yaml": "sub/z.yaml",
	} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	w, err := walkRoot(root)
	if err != nil || len(w.folders) != 3 || len(w.found) != 3 { // root, sub and again; n.yaml, sub/z.yaml and again/z.yaml
		t.Fatalf("%v, %d folders, %v", err, len(w.folders), w.found)
	}
	w.root.Close()
	snap, problems, err := Load(root)
	if err != nil || len(snap.Nodes) != 1 {
		t.Errorf("%v, %d Nodes", err, len(snap.Nodes))
	}
	for _, c := range []struct {
		link    string
		warning bool
	}{{"a", true}, {"b", true}, {"sub/c", true}, {"d.yaml", false}, {"e.yaml", false}, {"f.json", false}} {
		if !slices.ContainsFunc(problems, func(p source.Problem) bool {
			return p.File == c.link && p.Warning == c.warning && strings.Contains(p.Error(), "path escapes from parent")
		}) {
			t.Errorf("%s is not reported: %v", c.link, problems)
		}
	}
}

// TestLinksThatMultiplyAreBounded: each of two folders has 70 links to the next, so there are 4,900 paths to the third.
func TestLinksThatMultiplyAreBounded(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "n.yaml"), node("n1", "z1"))
	for i := range 3 {
		here := filepath.Join(root, fmt.Sprintf(".%d", i))
		err := os.Mkdir(here, 0o700)
		for link := range 70 * min(1, 2-i) { // the last one has none
			err = errors.Join(err, os.Symlink(fmt.Sprintf("../.%d", i+1), filepath.Join(here, fmt.Sprint(link))))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(".0", filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	w, err := walkRoot(root)
	if err != nil || len(w.folders) != maxFolders {
		t.Fatalf("%v, %d folders", err, len(w.folders))
	}
	w.root.Close()
	if got := problemTexts(t, root); strings.Count(got, "more than 4096 folders") != strictyaml.MaxReported || !strings.Contains(got, "and ") {
		t.Error(got)
	}
}

func TestDeepFoldersAreBounded(t *testing.T) {
	root := t.TempDir()
	deep := strings.Repeat("d/", maxDepth)
	write(t, filepath.Join(root, deep, "n.yaml"), node("n1", "z1"))
	write(t, filepath.Join(root, deep, "d/n.yaml"), node("n2", "z1"))
	if got := problemTexts(t, root); strings.Count(got, "\n") != 0 || !strings.Contains(got, "nested more than 32 levels deep") {
		t.Error(got)
	}
}

func TestManifestsTogetherAreBounded(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "z1"))
	for i := range maxTotal/maxFile + 1 {
		path := filepath.Join(root, fmt.Sprintf("b%02d.yaml", i))
		write(t, path, "")
		if err := os.Truncate(path, maxFile); err != nil {
			t.Fatal(err)
		}
	}
	w, err := walkRoot(root)
	if err != nil || len(w.unread) == 0 || len(w.unread) > 2 || w.total > maxTotal {
		t.Errorf("%v, %v, %d bytes", err, w.unread, w.total)
	}
	w.root.Close()
}

func TestChangeWithoutFreeDescriptorsIsReadLater(t *testing.T) {
	for _, name := range []string{"a.yaml", "sub/a.yaml"} {
		root := t.TempDir()
		write(t, filepath.Join(root, name), node("n1", "a"))
		r := start(t, root, impatient)
		r.write(name+".new", node("n1", "b"))
		testenv.WithoutDescriptors(t, func() {
			// Without an event later.
			r.must(os.Rename(filepath.Join(root, name+".new"), filepath.Join(root, name)))
			r.waitForLog("too many open files")
			r.waitForZones("n1=a")
		})
		r.waitForZones("n1=b")
	}
}

// TestFileThatCannotBeOpenedKeepsItsObjects, and is not a part of a first state if it can be opened later.
func TestFileThatCannotBeOpenedKeepsItsObjects(t *testing.T) {
	old := &file{docs: []*document{{}}}
	for _, c := range []struct {
		err       error
		temporary bool
	}{{syscall.EMFILE, true}, {syscall.EACCES, false}} {
		open := func() (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: "a.yaml", Err: c.err} }
		f := readFile(t.Context(), time.Now, "a.yaml", open, old)
		if len(f.docs) != 1 || f.info != nil || (f.temporary != nil) != c.temporary || !strings.Contains(f.problem.Error(), "keeping the objects of its last valid version") {
			t.Errorf("%v: %+v, %v", c.err, f, f.problem)
		}
	}
}

// TestFileThatIsWrittenIsReadLater: decoding a torn List is expensive, because it is none.
func TestFileThatIsWrittenIsReadLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, node("n1", "a")+strings.Repeat("# a comment\n", 1<<16))
	stop := writeForever(path)
	open := func() (*os.File, error) { return os.Open(path) }
	old := &file{docs: []*document{{}, {}}}
	testenv.Eventually(t, "a change while the file is read", func() bool {
		f := readFile(t.Context(), time.Now, "a.yaml", open, old)
		return f.temporary != nil && f.info == nil && len(f.docs) == 2
	})
	stop()
	later := func() time.Time { return time.Now().Add(time.Hour) }
	if f := readFile(t.Context(), later, "a.yaml", open, old); f.temporary != nil || f.info == nil || len(f.docs) != 1 {
		t.Errorf("%+v", f)
	}
}

// writeForever changes the time of a file until stop is called.
func writeForever(path string) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
				at := time.Unix(int64(i), 0)
				_ = os.Chtimes(path, at, at)
			}
		}
	}()
	return func() {
		close(over)
		<-stopped
	}
}

func TestOversizedFileKeepsItsObjects(t *testing.T) {
	d := &directory{root: t.TempDir()}
	path := filepath.Join(d.root, "a.yaml")
	write(t, path, node("n1", "a"))
	scanOnce(t, d)
	if err := os.Truncate(path, maxFile+1); err != nil {
		t.Fatal(err)
	}
	changes, problems := scanTwice(t, d)
	if len(changes) > 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "larger than 128 MiB; keeping the objects of its last valid version") {
		t.Errorf("%v, %v", changes, problems)
	}
}

// TestOnlyChangedFilesAreRead: a file of which the times may be too coarse is read again. One from the future is not: a clock
// was set back since.
func TestOnlyChangedFilesAreRead(t *testing.T) {
	now := time.Now()
	d := &directory{root: t.TempDir(), now: func() time.Time { return now }}
	path := filepath.Join(d.root, "a.yaml")
	write(t, path, node("n1", "a"))
	read := func(when string, later time.Duration, want ...bool) {
		t.Helper()
		now = time.Now().Add(later)
		for i, want := range want {
			if _, changed, err := d.scan(t.Context()); err != nil || changed != want {
				t.Errorf("scan %d %s: %t, want %t; %v", i, when, changed, want, err)
			}
		}
	}
	read("of a file that was just written", 0, true, true)
	read("of an old file", time.Hour, true, false, false)
	write(t, path, node("n1", "a"))
	read("of a file from the future", -time.Hour, true, false, false)
	at := time.Now().Add(24 * time.Hour)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	read("of a file with a time in the future", time.Hour, true, false, false)
}

// TestFileWithTheSameTimeIsRead: archives that can be reproduced have one time for all files, and a new file may get the inode of
// the old one.
func TestFileWithTheSameTimeIsRead(t *testing.T) {
	d := &directory{root: t.TempDir(), now: func() time.Time { return time.Now().Add(time.Hour) }}
	for i, zone := range []string{"a", "b"} {
		path := filepath.Join(d.root, "a.yaml")
		write(t, path, node("n1", zone))
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if changes, _, _ := scanOnce(t, d); len(changes) != 1 || changes[0].Node.Zone != zone {
			t.Errorf("version %d: %v", i, changes)
		}
	}
}

// TestEntriesStayBounded: os.File.ReadDir reads all of a folder if its limit is not positive.
func TestEntriesStayBounded(t *testing.T) {
	base := t.TempDir()
	for i := range 3 {
		write(t, filepath.Join(base, fmt.Sprint(i, ".yaml")), "")
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w := &walk{root: root, folders: map[string]fs.FileInfo{}, entries: maxEntries + 1}
	if err := w.list(".", make([]fs.FileInfo, 1)); err == nil || w.entries > maxEntries+2 || len(w.found) > 0 {
		t.Errorf("%v, %d entries, %v", err, w.entries, w.found)
	}
}

// TestFolderThatBecomesAFIFOIsNotWaitedFor: opening it for reading would wait for a writer.
func TestFolderThatBecomesAFIFOIsNotWaitedFor(t *testing.T) {
	base := t.TempDir()
	root, err := os.OpenRoot(base)
	if err == nil {
		err = syscall.Mkfifo(filepath.Join(base, "sub"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w, ended := &walk{root: root, folders: map[string]fs.FileInfo{}}, make(chan error, 1)
	go func() { ended <- w.list("sub", make([]fs.FileInfo, 1)) }()
	var got error
	testenv.Eventually(t, "the end of the walk", func() bool {
		select {
		case got = <-ended:
			return true
		default:
			return false
		}
	})
	if !errors.Is(got, syscall.ENOTDIR) {
		t.Error(got)
	}
}

// TestLoadReportsFilesThatChange: without a next walk, their objects are missing.
func TestLoadReportsFilesThatChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, node("n1", "a")+strings.Repeat("# a comment\n", 1<<16))
	stop := writeForever(path)
	defer stop()
	testenv.Eventually(t, "a change while the file is read", func() bool {
		snap, problems, err := Load(filepath.Dir(path))
		if err != nil || len(snap.Nodes)+len(problems) != 1 {
			t.Fatalf("%d Nodes, %v, %v", len(snap.Nodes), problems, err)
		}
		return len(problems) == 1 && problems[0].Error() == "a.yaml: "+errWritten.Error()
	})
}
