package dir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// Bounds of a walk, well above what a directory of manifests has. A symbolic link may lead to all of the disk.
const (
	maxDepth   = 32
	maxFolders = 4096    // each takes a watch
	maxEntries = 1 << 20 // of all folders
	maxTotal   = 1 << 30 // bytes of all manifests
)

// walker lists the manifests below a directory, breadth first: what is near the root counts first towards the bounds.
type walker struct {
	onDir      func(string)
	found      []listedFile
	unreadable map[string]bool // files and directories that could not be read, relative paths
	retry      bool            // some of them for a temporary reason
	problems   []source.Problem

	queue            []*folder
	above            []fs.FileInfo // the directories that contain the root
	folders, entries int           // listed so far
	size             int64         // of the manifests found so far, in bytes
}

// folder is a directory to be listed.
type folder struct {
	path, rel string
	info      fs.FileInfo
	parent    *folder
	depth     int
}

// walk lists the manifests below root. The error is about root itself.
func (t *walker) walk(root string) error {
	t.unreadable = map[string]bool{}
	t.onDir(root)
	realPath, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	for dir := realPath; filepath.Dir(dir) != dir; {
		dir = filepath.Dir(dir)
		if info, err := os.Stat(dir); err == nil {
			t.above = append(t.above, info)
		}
	}
	info, err := os.Stat(root)
	if err == nil {
		err = t.list(&folder{path: root, info: info})
	}
	if err != nil {
		return err
	}
	for len(t.queue) > 0 {
		if t.folders == maxFolders {
			t.skipQueue()
			break
		}
		f := t.queue[0]
		t.queue = t.queue[1:]
		t.onDir(f.path)
		if err := t.list(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.addUnreadable(f.rel, err)
		}
	}
	slices.SortFunc(t.found, func(a, b listedFile) int { return strings.Compare(a.rel, b.rel) })
	return nil
}

// skipQueue reports once that the folders in the queue are not read.
func (t *walker) skipQueue() {
	rel := t.queue[0].rel
	t.addUnreadable(rel, fmt.Errorf("%s: more than %d folders: it and %d others are not read", rel, maxFolders, len(t.queue)-1))
	for _, f := range t.queue {
		t.unreadable[f.rel] = true
	}
}

// list lists a directory. It skips names that begin with a dot: editors' swap files, and the internal links of a mounted
// ConfigMap.
func (t *walker) list(f *folder) error {
	for p := f.parent; p != nil; p = p.parent {
		if os.SameFile(p.info, f.info) { // a loop
			return nil
		}
	}
	if f.depth > maxDepth {
		return fmt.Errorf("%s: folders nested more than %d levels deep", f.rel, maxDepth)
	}
	if name := safefile.PseudoFileSystem(f.path); name != "" {
		return fmt.Errorf("%s: %s is a pseudo file system", f.path, name)
	}
	t.folders++
	entries, err := t.readEntries(f.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		t.entry(e, f, filepath.Join(f.path, name), strings.TrimPrefix(f.rel+"/"+name, "/"))
	}
	return nil
}

// readEntries returns the entries of a directory, sorted by name.
func (t *walker) readEntries(path string) ([]fs.DirEntry, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var all []fs.DirEntry
	for {
		some, err := d.ReadDir(1024)
		all = append(all, some...)
		t.entries += len(some)
		switch {
		case t.entries > maxEntries:
			return nil, fmt.Errorf("%s: more than %d files in the source directory", path, maxEntries)
		case errors.Is(err, io.EOF):
			slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
			return all, nil
		case err != nil:
			return nil, err
		}
	}
}

func (t *walker) entry(e fs.DirEntry, parent *folder, path, rel string) {
	m := listedFile{path: path, rel: rel, realPath: path}
	link := e.Type()&fs.ModeSymlink != 0
	manifest := isManifest(rel)
	if !link && !e.IsDir() && !manifest {
		return
	}
	info, err := os.Stat(path)
	if err == nil && link {
		m.realPath, err = filepath.EvalSymlinks(path)
	}
	switch {
	case err != nil && !link && errors.Is(err, fs.ErrNotExist): // deleted since it was listed
	case err != nil && (link && !manifest):
	case err != nil:
		t.addUnreadable(rel, err)
	case info.IsDir() && slices.ContainsFunc(t.above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }):
		t.warn(rel, "leads to a directory that contains the source directory: ignored")
	case info.IsDir():
		t.queue = append(t.queue, &folder{path, rel, info, parent, parent.depth + 1})
	case !manifest:
	case !info.Mode().IsRegular():
		t.warn(rel, "not a regular file: ignored")
	case t.size+info.Size() > maxTotal && info.Size() <= maxFile:
		t.addUnreadable(rel, fmt.Errorf("read %s: the manifests before it have %d MiB; together at most %d MiB are read", rel, t.size>>20, maxTotal>>20))
	default:
		if link {
			t.onDir(filepath.Dir(m.realPath))
		}
		if info.Size() <= maxFile { // reading reports a larger one
			t.size += info.Size()
		}
		m.info = info
		t.found = append(t.found, m)
	}
}

func (t *walker) warn(rel, text string) {
	t.problems = append(t.problems, source.Problem{File: rel, Err: errors.New(text), Warning: true})
}

func (t *walker) addUnreadable(rel string, err error) {
	t.unreadable[rel] = true
	t.retry = t.retry || safefile.IsTemporary(err)
	t.problems = append(t.problems, source.Problem{File: rel, Err: fmt.Errorf("%w; keeping what was read before", err)})
}

// isUnreadable reports whether a file, or a folder that it is in, could not be read.
func (t *walker) isUnreadable(rel string) bool {
	for ; rel != "." && rel != "/"; rel = filepath.Dir(rel) {
		if t.unreadable[rel] {
			return true
		}
	}
	return false
}
