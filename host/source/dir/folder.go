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

// folder is the last known contents of a folder.
type folder struct {
	root  string
	files map[string]*file      // by path relative to root, with slashes
	last  state                 // what merge gave
	good  map[objectKey]*object // the last version of each object in which nothing was wrong
	walk  []source.Problem      // of the last scan: what could not be read
	// busy are files that somebody was still writing at the last scan, by path, with the scans that saw no progress.
	// Nil: what is read once is not looked at again, so that everything is taken as it is.
	busy map[string]*writing
}

// writing is the state of a file that is being written.
type writing struct {
	info fs.FileInfo
	idle int // scans without a change of size or time
}

// maxIdle is how many scans a file may stay open for writing without progress, before it is read as it is: half a
// second, at one scan each absence.
const maxIdle = 20

// file is one manifest. When broken is set, docs are those of the last version that could be parsed, if any.
type file struct {
	path   string      // under the root
	real   string      // behind symbolic links
	info   fs.FileInfo // of real, when it was read
	docs   []*document
	broken *source.Problem
	open   bool // somebody was writing it while it was read
}

func newFolder(root string) *folder {
	return &folder{root: root, files: map[string]*file{}}
}

// scan brings files up to date with the disk. Only what looks different is read again, or what dirty names: times
// are too coarse to tell two quick writes apart. enter is called with each folder before it is listed, and with the
// folders that symbolic links lead to. After an error nothing has changed.
func (f *folder) scan(dirty names, enter func(string)) error {
	t := &tree{enter: enter, onPath: map[string]bool{}}
	if t.enter == nil {
		t.enter = func(string) {}
	}
	if err := t.list(f.root, ""); err != nil {
		return fmt.Errorf("source folder %s: %w", f.root, err)
	}
	next := make(map[string]*file, len(t.found))
	problems := t.problems
	for path := range f.busy {
		if !slices.ContainsFunc(t.found, func(m found) bool { return m.path == path }) {
			delete(f.busy, path)
		}
	}
	for _, found := range t.found {
		old := f.files[found.rel]
		if old != nil && old.real == found.real && same(old.info, found.info) && !dirty.has(found.path) && !dirty.has(found.real) {
			next[found.rel] = old
			continue
		}
		fresh, err := found.read(old)
		if err == nil && f.busy != nil && f.unfinished(found.path, fresh) {
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
			problems = append(problems, source.Problem{File: found.rel, Err: kept(err, old)})
			if old != nil {
				next[found.rel] = old
			}
		}
	}
	for rel, old := range f.files { // what cannot be looked at is not gone
		if next[rel] == nil && slices.ContainsFunc(t.hidden, func(h string) bool { return rel == h || strings.HasPrefix(rel, h+"/") }) {
			next[rel] = old
		}
	}
	f.files, f.walk = next, problems
	return nil
}

// unfinished tells whether a file that has just been read should rather be read later.
func (f *folder) unfinished(path string, m *file) bool {
	if !m.open {
		delete(f.busy, path)
		return false
	}
	w := f.busy[path]
	if w == nil {
		w = &writing{info: m.info}
		f.busy[path] = w
	}
	if same(w.info, m.info) {
		w.idle++
	} else {
		w.info, w.idle = m.info, 0
	}
	if w.idle <= maxIdle {
		return true
	}
	delete(f.busy, path)
	return false
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func kept(err error, old *file) error {
	if old == nil || len(old.docs) == 0 {
		return err
	}
	return fmt.Errorf("%w: the objects of its last good version are kept", err)
}

// found is a manifest that a tree holds.
type found struct {
	path, rel, real string
	info            fs.FileInfo
}

// read parses a manifest. Documents that have not changed since old are not parsed again.
func (m found) read(old *file) (*file, error) {
	f := &file{path: m.path, real: m.real, info: m.info}
	r, err := open(m.path)
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
	if name := pseudo(r); name != "" {
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
		f.open = !same(f.info, now) || beingWritten(r)
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
		f.broken = &source.Problem{File: m.rel, Err: errors.New("empty: the objects of its last good version are kept until it is written or removed")}
		return f, nil
	}
	docs, problem := parse(text, strings.HasSuffix(m.rel, ".json"), known)
	if problem != nil {
		problem.File = m.rel
		f.broken = problem
		if len(known) > 0 {
			problem.Err = kept(problem.Err, old)
			docs = known
		}
	} else if i := slices.IndexFunc(docs, func(d *document) bool { return d.incomplete }); i >= 0 && len(known) > 0 {
		// A file that is cut off in the middle of a word can still be well-formed.
		if lost := missing(known, docs); len(lost) > 0 {
			f.broken = &source.Problem{File: m.rel, Line: docs[i].line,
				Err: errors.New("an object without kind or name: half-written? What the file no longer has is kept until this is mended")}
			docs = append(docs, lost...)
		}
	}
	f.docs = docs
	return f, nil
}

// missing gives the old documents with objects that no new one has.
func missing(old, docs []*document) []*document {
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

// tree lists manifests below a folder.
type tree struct {
	enter    func(string)
	found    []found
	hidden   []string        // files and folders that could not be looked at, relative
	onPath   map[string]bool // real folders from the root to here, against loops of links
	problems []source.Problem
}

// list walks one folder. Names that begin with a dot are not manifests: editors' swap files, and the machinery
// behind a mounted ConfigMap.
func (t *tree) list(path, rel string) error {
	t.enter(path)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if t.onPath[real] {
		return nil
	}
	t.onPath[real] = true
	defer delete(t.onPath, real)
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
		slices.SortFunc(t.found, func(a, b found) int { return strings.Compare(a.rel, b.rel) })
	}
	return nil
}

func (t *tree) entry(e fs.DirEntry, path, rel string) {
	m := found{path: path, rel: rel, real: path}
	link := e.Type()&fs.ModeSymlink != 0
	manifest := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(rel))
	if !link && !e.IsDir() && !manifest {
		return
	}
	info, err := os.Stat(path)
	if err == nil && link {
		m.real, err = filepath.EvalSymlinks(path)
	}
	switch {
	case err != nil && !link && errors.Is(err, fs.ErrNotExist): // gone since it was listed
	case err != nil && (link && !manifest):
	case err != nil:
		t.hide(rel, err)
	case info.IsDir():
		if err := t.list(path, rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.hide(rel, err)
		}
	case manifest && info.Mode().IsRegular():
		if link {
			t.enter(filepath.Dir(m.real))
		}
		m.info = info
		t.found = append(t.found, m)
	case manifest:
		t.problems = append(t.problems, source.Problem{File: rel, Err: errors.New("not a regular file: ignored"), Warning: true})
	}
}

func (t *tree) hide(rel string, err error) {
	t.hidden = append(t.hidden, rel)
	t.problems = append(t.problems, source.Problem{File: rel, Err: fmt.Errorf("%w: what was read of it is kept", err)})
}

// names is a set of paths; with the empty path in it, of all paths.
type names map[string]bool

func (n names) has(path string) bool { return n[path] || n[""] }

// holds tells whether a manifest was read at this path or through a link to it.
func (f *folder) holds(path string) bool {
	for _, m := range f.files {
		if m.path == path || m.real == path {
			return true
		}
	}
	return false
}
