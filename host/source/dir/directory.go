package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/host/safefile"
	"github.com/sluice-proxy/sluice/host/source"
)

// directory is the last known content of the source directory.
type directory struct {
	root         string
	files        map[string]*file      // by path relative to root, with slashes
	last         state                 // result of the last merge
	lastGood     map[objectKey]*object // last valid version of each object
	scanProblems []source.Problem      // files that the last scan could not read
	// writing contains the files that were open for writing at the last scan, by path. Nil: files are read as they are,
	// because there is no later scan.
	writing map[string]*writeState
	// retry contains the files that may have changed before a scan that could not read something for a temporary reason,
	// such as too many open files. Nil: the last scan had no such error.
	retry pathSet
	// late are the files that scans leave for later. Nil: scans read all files.
	late *lateReads
	// vanished are the objects that no file has any more and that stay for now, with the scan that has missed them first: a file that is still to
	// be read may have them.
	vanished map[objectKey]int
}

// writeState is the state of a file that is open for writing.
type writeState struct {
	info      fs.FileInfo
	idleScans int // scans without a change of size or time
}

// maxIdleScans is how many scans without progress a file may stay open for writing before it is read as it is: half a
// second, at one scan per renameGrace.
const maxIdleScans = 20

func newDirectory(root string) *directory {
	return &directory{root: root, files: map[string]*file{}}
}

// scan updates files from the disk. It reads files whose size or time differ, and those in dirty, because file times are
// too coarse to distinguish two quick writes. onDir is called with each directory before it is listed, and with the
// directories that symbolic links lead to. After an error nothing has changed.
func (f *directory) scan(dirty pathSet, onDir func(string)) error {
	t := &walker{onDir: onDir}
	if t.onDir == nil {
		t.onDir = func(string) {}
	}
	f.retry = nil
	if err := t.walk(f.root); err != nil {
		if safefile.IsTemporary(err) {
			f.addRetry(dirty)
		}
		return fmt.Errorf("source directory %s: %w", f.root, err)
	}
	next := make(map[string]*file, len(t.found))
	problems := t.problems
	if t.retry {
		f.addRetry(dirty.seen())
	}
	for path := range f.writing {
		if !slices.ContainsFunc(t.found, func(m listedFile) bool { return m.path == path }) {
			delete(f.writing, path)
		}
	}
	reads := f.readChanged(t.found, dirty, next)
	for i, found := range t.found {
		old, fresh, err := f.files[found.rel], reads[i].fresh, reads[i].err
		if fresh == nil && err == nil {
			continue // not read
		}
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
			if safefile.IsTemporary(err) {
				f.addRetry(dirty.seen())
				f.retry[found.path] = false
			}
			if old != nil {
				next[found.rel] = old
			}
		}
	}
	for rel, old := range f.files { // unreadable files are not deleted ones
		if next[rel] == nil && t.isUnreadable(rel) {
			next[rel] = old
		}
	}
	f.files, f.scanProblems = next, problems
	return nil
}

// readResult is what became of reading a file; zero if it was not read.
type readResult struct {
	fresh *file
	err   error
}

// readChanged reads the files that may have changed, of those found, and returns a result for each. It adds all that are not read to next, as they
// were.
func (f *directory) readChanged(found []listedFile, dirty pathSet, next map[string]*file) []readResult {
	var changed, late []int // of found
	for i, m := range found {
		old := f.files[m.rel]
		switch {
		case f.late.isPending(m.path):
			late = append(late, i)
		case old != nil && old.realPath == m.realPath && sameFile(old.info, m.info) && !dirty.has(m):
			next[m.rel] = old
		default:
			changed = append(changed, i)
		}
	}
	if f.late != nil {
		f.late.begin(found)
		n := eager(found, changed)
		changed, late = changed[:n], append(late, changed[n:]...)
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	reads := make([]readResult, len(found))
	for _, i := range changed {
		g.Go(func() error {
			reads[i].fresh, reads[i].err = found[i].read(f.files[found[i].rel])
			return nil
		})
	}
	for _, i := range late {
		m, taken := found[i], false
		old := f.files[m.rel]
		if reads[i], taken = f.late.take(m, old, dirty.hasEvent(m)); !taken && reads[i].err == nil && old != nil {
			next[m.rel] = old
		}
	}
	_ = g.Wait()
	return reads
}

// addRetry adds files to those to read again.
func (f *directory) addRetry(paths pathSet) {
	if f.retry == nil {
		f.retry = pathSet{}
	}
	maps.Copy(f.retry, paths)
}

// unfinished reports whether a file that was just read is still being written and is to be read later.
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

// pathSet is a set of paths of files to read again; the empty path stands for all. The value tells whether an event came since the last scan.
type pathSet map[string]bool

// has reports whether a file is to be read again.
func (n pathSet) has(m listedFile) bool {
	for _, path := range [...]string{m.path, m.realPath, ""} {
		if _, ok := n[path]; ok {
			return true
		}
	}
	return false
}

// seen returns the set as it is after a scan that has taken account of its events.
func (n pathSet) seen() pathSet {
	out := pathSet{}
	for path := range n {
		out[path] = false
	}
	return out
}

// hasEvent reports whether there was an event of a file.
func (n pathSet) hasEvent(m listedFile) bool { return n[m.path] || n[m.realPath] || n[""] }

// hasFile reports whether a manifest was read at this path or through a link to it.
func (f *directory) hasFile(path string) bool {
	for _, m := range f.files {
		if m.path == path || m.realPath == path {
			return true
		}
	}
	return false
}
