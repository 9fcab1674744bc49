package dir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// maxFile bounds what is read of one file: 100,000 Services with their slices are about 150 MB of YAML, in several.
const maxFile = 128 << 20

// directory is the last known contents of a folder.
type directory struct {
	root         string
	files        map[string]*file      // by path relative to root, with slashes
	last         state                 // what merge gave
	lastGood     map[objectKey]*object // the last version of each object in which nothing was wrong
	scanProblems []source.Problem      // of the last scan: what could not be read
	// writing are files that somebody was still writing at the last scan, by path, with the scans that saw no progress.
	// Nil: what is read once is not looked at again, so that everything is taken as it is.
	writing map[string]*writeState
}

// writeState is the state of a file that is being written.
type writeState struct {
	info      fs.FileInfo
	idleScans int // scans without a change of size or time
}

// maxIdleScans is how many scans a file may stay open for writing without progress, before it is read as it is: half a
// second, at one scan each absence.
const maxIdleScans = 20

// file is one manifest. When broken is set, docs are those of the last version that could be parsed, if any.
type file struct {
	path           string      // under the root
	realPath       string      // behind symbolic links
	info           fs.FileInfo // of real, when it was read
	docs           []*document
	problem        *source.Problem
	openForWriting bool // somebody was writing it while it was read
}

func newDirectory(root string) *directory {
	return &directory{root: root, files: map[string]*file{}}
}

// scan brings files up to date with the disk. Only what looks different is read again, or what dirty names: times
// are too coarse to tell two quick writes apart. enter is called with each folder before it is listed, and with the
// folders that symbolic links lead to. After an error nothing has changed.
func (f *directory) scan(dirty pathSet, enter func(string)) error {
	t := &walker{onDir: enter, ancestors: map[string]bool{}}
	if t.onDir == nil {
		t.onDir = func(string) {}
	}
	if err := t.list(f.root, ""); err != nil {
		return fmt.Errorf("source folder %s: %w", f.root, err)
	}
	next := make(map[string]*file, len(t.found))
	problems := t.problems
	for path := range f.writing {
		if !slices.ContainsFunc(t.found, func(m listedFile) bool { return m.path == path }) {
			delete(f.writing, path)
		}
	}
	for _, found := range t.found {
		old := f.files[found.rel]
		if old != nil && old.realPath == found.realPath && sameFile(old.info, found.info) && !dirty.has(found.path) && !dirty.has(found.realPath) {
			next[found.rel] = old
			continue
		}
		fresh, err := found.read(old)
		if err == nil && f.writing != nil && f.unfinished(found.path, fresh) {
			if old != nil {
				next[found.rel] = old
			}
			continue
		}
		switch {
		case err == nil:
			next[found.rel] = fresh
		case errors.Is(err, fs.ErrNotExist): // gone since it was listed
		default:
			problems = append(problems, source.Problem{File: found.rel, Err: withKeptNote(err, old)})
			if old != nil {
				next[found.rel] = old
			}
		}
	}
	for rel, old := range f.files { // what cannot be looked at is not gone
		if next[rel] == nil && slices.ContainsFunc(t.unreadable, func(h string) bool { return rel == h || strings.HasPrefix(rel, h+"/") }) {
			next[rel] = old
		}
	}
	f.files, f.scanProblems = next, problems
	return nil
}

// unfinished tells whether a file that has just been read should rather be read later.
func (f *directory) unfinished(path string, m *file) bool {
	if !m.openForWriting {
		delete(f.writing, path)
		return false
	}
	w := f.writing[path]
	if w == nil {
		w = &writeState{info: m.info}
		f.writing[path] = w
	}
	if sameFile(w.info, m.info) {
		w.idleScans++
	} else {
		w.info, w.idleScans = m.info, 0
	}
	if w.idleScans <= maxIdleScans {
		return true
	}
	delete(f.writing, path)
	return false
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func withKeptNote(err error, old *file) error {
	if old == nil || len(old.docs) == 0 {
		return err
	}
	return fmt.Errorf("%w: the objects of its last good version are kept", err)
}

// listedFile is a manifest that a tree holds.
type listedFile struct {
	path, rel, realPath string
	info                fs.FileInfo
}

// read parses a manifest. Documents that have not changed since old are not parsed again.
func (m listedFile) read(old *file) (*file, error) {
	f := &file{path: m.path, realPath: m.realPath, info: m.info}
	r, err := openNonblocking(m.path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if f.info, err = r.Stat(); err != nil {
		return nil, err
	}
	if !f.info.Mode().IsRegular() {
		return nil, fmt.Errorf("open %s: not a regular file", m.rel)
	}
	if name := pseudoFileSystem(r); name != "" {
		return nil, fmt.Errorf("open %s: on a %s file system, which holds no files but the kernel's", m.rel, name)
	}
	if size := f.info.Size(); size > maxFile {
		return nil, fmt.Errorf("read %s: %d MiB, larger than %d MiB", m.rel, size>>20, maxFile>>20)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if now, err := r.Stat(); err == nil {
		f.openForWriting = !sameFile(f.info, now) || isOpenForWriting(r)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("read %s: larger than %d MiB", m.rel, maxFile>>20)
	}
	var known []*document
	if old != nil {
		known = old.docs
	}
	if len(bytes.TrimSpace(text)) == 0 && len(known) > 0 {
		// Many programs write a file by emptying it first.
		f.docs = known
		f.problem = &source.Problem{File: m.rel, Err: errors.New("empty: the objects of its last good version are kept until it is written or removed")}
		return f, nil
	}
	docs, problem := parse(text, strings.HasSuffix(m.rel, ".json"), known)
	if problem != nil {
		problem.File = m.rel
		f.problem = problem
		if len(known) > 0 {
			problem.Err = withKeptNote(problem.Err, old)
			docs = known
		}
	} else if i := slices.IndexFunc(docs, func(d *document) bool { return d.incomplete }); i >= 0 && len(known) > 0 {
		// A file that is cut off in the middle of a word can still be well-formed.
		if lost := lostDocuments(known, docs); len(lost) > 0 {
			f.problem = &source.Problem{File: m.rel, Line: docs[i].line,
				Err: errors.New("an object without kind or name: half-written? What the file no longer has is kept until this is mended")}
			docs = append(docs, lost...)
		}
	}
	f.docs = docs
	return f, nil
}

// lostDocuments gives the old documents with objects that no new one has.
func lostDocuments(old, docs []*document) []*document {
	type id struct {
		kind string
		name model.Name
	}
	here := map[id]bool{}
	for _, d := range docs {
		for _, o := range d.objects {
			here[id{o.kind, o.name}] = true
		}
	}
	var out []*document
	for _, d := range old {
		if slices.ContainsFunc(d.objects, func(o *object) bool { return !here[id{o.kind, o.name}] }) {
			out = append(out, d)
		}
	}
	return out
}

// walker lists manifests below a folder.
type walker struct {
	onDir      func(string)
	found      []listedFile
	unreadable []string        // files and folders that could not be looked at, relative
	ancestors  map[string]bool // real folders from the root to here, against loops of links
	problems   []source.Problem
}

// list walks one folder. Names that begin with a dot are not manifests: editors' swap files, and the machinery
// behind a mounted ConfigMap.
func (t *walker) list(path, rel string) error {
	t.onDir(path)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if t.ancestors[real] {
		return nil
	}
	t.ancestors[real] = true
	defer delete(t.ancestors, real)
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		t.entry(e, filepath.Join(path, name), strings.TrimPrefix(rel+"/"+name, "/"))
	}
	if rel == "" {
		slices.SortFunc(t.found, func(a, b listedFile) int { return strings.Compare(a.rel, b.rel) })
	}
	return nil
}

func (t *walker) entry(e fs.DirEntry, path, rel string) {
	m := listedFile{path: path, rel: rel, realPath: path}
	link := e.Type()&fs.ModeSymlink != 0
	manifest := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(rel))
	if !link && !e.IsDir() && !manifest {
		return
	}
	info, err := os.Stat(path)
	if err == nil && link {
		m.realPath, err = filepath.EvalSymlinks(path)
	}
	switch {
	case err != nil && !link && errors.Is(err, fs.ErrNotExist): // gone since it was listed
	case err != nil && (link && !manifest):
	case err != nil:
		t.addUnreadable(rel, err)
	case info.IsDir():
		if err := t.list(path, rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.addUnreadable(rel, err)
		}
	case manifest && info.Mode().IsRegular():
		if link {
			t.onDir(filepath.Dir(m.realPath))
		}
		m.info = info
		t.found = append(t.found, m)
	case manifest:
		t.problems = append(t.problems, source.Problem{File: rel, Err: errors.New("not a regular file: ignored"), Warning: true})
	}
}

func (t *walker) addUnreadable(rel string, err error) {
	t.unreadable = append(t.unreadable, rel)
	t.problems = append(t.problems, source.Problem{File: rel, Err: fmt.Errorf("%w: what was read of it is kept", err)})
}

// pathSet is a set of paths; with the empty path in it, of all paths.
type pathSet map[string]bool

func (n pathSet) has(path string) bool { return n[path] || n[""] }

// hasFile tells whether a manifest was read at this path or through a link to it.
func (f *directory) hasFile(path string) bool {
	for _, m := range f.files {
		if m.path == path || m.realPath == path {
			return true
		}
	}
	return false
}
