package dir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// Bounds of a walk, well above what a directory of manifests has. Symbolic links may multiply its folders.
const (
	maxDepth   = 32
	maxFolders = 4096    // each takes a watch
	maxEntries = 1 << 20 // of all folders
	maxTotal   = 1 << 30 // bytes of all manifests
)

// manifest is a file that a walk has found.
type manifest struct {
	rel  string // path relative to the root, with slashes
	info fs.FileInfo
}

// walk is what a walk of a directory has found.
type walk struct {
	root      *os.Root // the caller closes it
	found     []manifest
	folders   map[string]fs.FileInfo // by relative path
	unread    map[string]bool        // files and folders that exist and could not be read
	temporary error                  // why one of them was not read, if it is for want of descriptors or memory
	problems  problemList

	entries int
	total   int64 // bytes of what was found
}

// walkRoot lists the manifests of a directory, sorted by path. The error is about the directory itself.
func walkRoot(name string) (*walk, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	w := &walk{root: root, folders: map[string]fs.FileInfo{}, unread: map[string]bool{}}
	info, err := root.Stat(".")
	if err == nil {
		err = w.list(".", []fs.FileInfo{info})
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	slices.SortFunc(w.found, func(a, b manifest) int { return strings.Compare(a.rel, b.rel) })
	return w, nil
}

// list lists a folder. The last of above is the folder, the others contain it. It skips names that begin with a dot: editors'
// swap files, and the internal links of a mounted ConfigMap.
func (w *walk) list(rel string, above []fs.FileInfo) error {
	if len(above) > maxDepth+1 {
		return fmt.Errorf("folders nested more than %d levels deep", maxDepth)
	} else if len(w.folders) == maxFolders {
		return fmt.Errorf("more than %d folders", maxFolders)
	}
	d, err := w.root.OpenFile(rel, openFlags, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	entries, err := d.ReadDir(max(1, maxEntries-w.entries+1)) // all of them if it is not positive
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if w.entries += len(entries); w.entries > maxEntries {
		return fmt.Errorf("more than %d files in the source directory", maxEntries)
	}
	w.folders[rel] = above[len(above)-1]
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && (!e.Type().IsRegular() || isManifest(e.Name())) {
			w.entry(path.Join(rel, e.Name()), e.Type()&fs.ModeSymlink != 0, above)
		}
	}
	return nil
}

func (w *walk) entry(rel string, link bool, above []fs.FileInfo) {
	info, err := w.root.Stat(rel)
	if err == nil && info.IsDir() && !slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) { // no loop of links
		err = w.list(rel, append(slices.Clip(above), info))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && !(link && isManifest(rel)): // deleted since it was listed, or a link to nowhere
	case err != nil: // such as a link that leads out of the root
		w.keep(rel, err, link && !isManifest(rel))
	case info.IsDir() || !isManifest(rel):
	case !info.Mode().IsRegular():
		w.problems.add(source.Problem{File: rel, Err: errors.New("not a regular file: ignored"), Warning: true})
	case info.Size() <= maxFile && w.total+info.Size() > maxTotal:
		w.keep(rel, fmt.Errorf("together with the manifests before it larger than %d MiB", maxTotal>>20), false)
	default:
		if info.Size() <= maxFile { // reading reports a larger one
			w.total += info.Size()
		}
		w.found = append(w.found, manifest{rel, info})
	}
}

// keep reports a file or folder that exists and cannot be read.
func (w *walk) keep(rel string, err error, warning bool) {
	w.unread[rel] = true
	if safefile.IsTemporary(err) {
		w.temporary = fmt.Errorf("%s: %w", rel, err)
	}
	w.problems.add(source.Problem{File: rel, Err: fmt.Errorf("%w; keeping what was read before", err), Warning: warning})
}

// isKept reports whether a file, or a folder that it is in, exists and could not be read.
func (w *walk) isKept(rel string) bool {
	for ; rel != "."; rel = path.Dir(rel) {
		if w.unread[rel] {
			return true
		}
	}
	return false
}

func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}
