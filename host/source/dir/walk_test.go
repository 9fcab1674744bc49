package dir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
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

func TestLinkToADirectoryAboveTheSourceIsIgnored(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "manifests")
	write(t, filepath.Join(root, "sub/z.yaml"), node("n1", "z1"))
	write(t, filepath.Join(base, "other.yaml"), node("n2", "z1"))
	for link, to := range map[string]string{"a": "/", "b": "..", "sub/c": "../..", "sub/d": "../sub", "e": "a", "f": "b/manifests/sub"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	w := &walker{onDir: func(string) {}}
	if err := w.walk(root); err != nil || w.folders > 4 || len(w.found) != 2 { // sub, and again through f
		t.Errorf("%v, %d folders, %v", err, w.folders, w.found)
	}
	texts := problemTexts(t, root)
	for _, link := range []string{"a", "b", "sub/c", "e"} {
		if !strings.Contains(texts, link+": leads to a directory that contains the source directory: ignored") {
			t.Errorf("%s is not reported:\n%s", link, texts)
		}
	}
}

// TestLinksThatMultiplyAreBounded: each folder has two links to the next, so there are 2^40 paths.
func TestLinksThatMultiplyAreBounded(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "manifests")
	write(t, filepath.Join(root, "n.yaml"), node("n1", "z1"))
	for i := range 40 {
		here := filepath.Join(base, fmt.Sprint(i))
		err := os.Mkdir(here, 0o700)
		for _, link := range []string{"x", "y"} {
			err = errors.Join(err, os.Symlink(fmt.Sprintf("../%d", i+1), filepath.Join(here, link)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../0", filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	w := &walker{onDir: func(string) {}}
	if err := w.walk(root); err != nil || w.folders != maxFolders {
		t.Errorf("%v, %d folders", err, w.folders)
	}
	if got := problemTexts(t, root); strings.Count(got, "\n") != 0 || !strings.Contains(got, "more than 4096 folders: it and ") {
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

func TestPseudoFileSystemsAreNotWalked(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "z.yaml"), node("n1", "z1"))
	for _, target := range []string{"/proc", "/proc/self/root/proc", "/sys"} {
		if err := os.Symlink(target, filepath.Join(root, strings.ReplaceAll(target, "/", "_"))); err != nil {
			t.Fatal(err)
		}
	}
	w := &walker{onDir: func(string) {}}
	if err := w.walk(root); err != nil || w.folders != 1 {
		t.Errorf("%v, %d folders", err, w.folders)
	}
	if got := problemTexts(t, root); strings.Count(got, "is a pseudo file system") != 3 {
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
	w := &walker{onDir: func(string) {}}
	if err := w.walk(root); err != nil || len(w.unreadable) != 2 || w.size > maxTotal {
		t.Errorf("%v, %v, %d bytes", err, w.unreadable, w.size)
	}
}

func TestChangeWithoutFreeDescriptorsIsReadLater(t *testing.T) {
	for _, name := range []string{"a.yaml", "sub/a.yaml"} {
		root := t.TempDir()
		write(t, filepath.Join(root, name), node("n1", "a"))
		r := start(t, root, timedOptions)
		r.write(name+".new", node("n1", "b"))
		testenv.WithoutDescriptors(t, func() {
			// Without an event later: neither name nor size of the file tells that it has changed.
			r.must(os.Rename(filepath.Join(root, name+".new"), filepath.Join(root, name)))
			r.waitForLog("too many open files")
			r.waitForZones("n1=a")
		})
		r.waitForZones("n1=b")
	}
}

func TestScanWithoutFreeDescriptorsAsksForAnother(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a.yaml")
	write(t, path, node("n1", "a"))
	d := newDirectory(root)
	var err error
	testenv.WithoutDescriptors(t, func() { err = d.list(pathSet{path: true}, func(string) {}) })
	if !errors.Is(err, syscall.EMFILE) || d.isRead() {
		t.Errorf("%v, held %v", err, d.held)
	}
	dirty := pathSet{}
	d.retry(dirty)
	scan(t, d, dirty)
	d.finish(<-d.reads)
	if !dirty[path] || len(d.held) > 0 || !d.isRead() || len(d.files) != 1 {
		t.Errorf("%v, held %v, %d files", dirty, d.held, len(d.files))
	}
}

// TestUnreadableFileIsNotReadAgain: reading it beside the scans would never end.
func TestUnreadableFileIsNotReadAgain(t *testing.T) {
	d := newDirectory(t.TempDir())
	path := filepath.Join(d.root, "a.yaml")
	write(t, path, node("n1", "a"))
	scanAndMerge(t, d)
	d.stepwise = true
	if err := os.Truncate(path, maxFile+1); err != nil {
		t.Fatal(err)
	}
	scan(t, d, nil)
	d.finish(<-d.reads)
	changes, problems := d.merge()
	if len(changes) > 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "larger than 128 MiB; keeping the objects of its last valid version") {
		t.Errorf("%v, %v", changes, problems)
	}
	if scan(t, d, nil); len(d.reading) > 0 {
		t.Error("the file is read again")
	}
	if scan(t, d, pathSet{path: true}); len(d.reading) == 0 {
		t.Error("the file is not read again after an event")
	}
	d.finish(<-d.reads)
}
