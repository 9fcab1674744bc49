package dir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// A scan reads changed files until they have eagerBytes, the smallest first. Others are read beside the scans, the oldest
// changes first, so that the changes of small files do not wait for them: decoding takes 10 to 20 ms for a MiB. A scan
// follows after each lateBytes of them.
const (
	eagerBytes = 256 << 10
	lateBytes  = 1 << 20
)

// maxIdleReads is how many times a file that is open for writing and does not change is left for later before it is read as
// it is: half a second, at one read per renameGrace.
const maxIdleReads = 20

// directory is the last known content of the source directory. A file's objects stay as they are until a scan has found that
// it is gone or has changed, and what has changed by then has been read. One goroutine uses it; others only read files.
type directory struct {
	root  string
	info  fs.FileInfo      // of root at the last scan; nil: there was none
	files map[string]*file // what was read last, by path relative to root, with slashes

	scans    int
	changed  map[string]*change // to be read
	reading  map[string]*change // being read beside the scans
	reads    chan []*change     // receives them when they have been read
	stepwise bool               // files are read as eagerBytes says; false: all beside the scans
	patient  bool               // files that are open for writing are read later
	held     pathSet            // what could not be listed or opened, perhaps for a temporary reason, and may have changed
	problems []source.Problem   // of what the last scan could not list

	last     map[key]*entry // result of the last merge
	vanished map[key]int    // objects that no file has any more and that stay for now, with the scan that has missed them first
}

// change is a file that is to be read.
type change struct {
	listedFile
	scan  int         // that has found the change
	later bool        // it is open for writing and waits for retry
	last  fs.FileInfo // of the open file
	idle  int         // reads of it without a change since
	old   *file       // its last version

	file *file // the result
	open bool  // a process had it open for writing
	err  error
}

func newDirectory(root string) *directory {
	return &directory{
		root: root, files: map[string]*file{}, changed: map[string]*change{}, reading: map[string]*change{}, reads: make(chan []*change, 1), held: pathSet{},
	}
}

// list finds changed files: those whose size or time differ, and those in dirty, because file times are too coarse to
// distinguish two quick writes. onDir is called with each folder before it is listed, and with the folders that symbolic
// links lead to. After an error nothing has changed.
func (d *directory) list(dirty pathSet, onDir func(string)) error {
	d.scans++
	d.info, _ = os.Stat(d.root) // nil with an error
	w := &walker{onDir: onDir}
	err := w.walk(d.root)
	if w.retry || err != nil {
		maps.Copy(d.held, dirty)
		d.held[d.root] = true
	}
	if err != nil {
		return err
	}
	d.problems = w.problems
	here := make(map[string]bool, len(w.found))
	for _, m := range w.found {
		here[m.rel] = true
		event := dirty.has(&m)
		if c := d.changed[m.rel]; c != nil {
			c.listedFile, c.later = m, c.later && !event
		} else if r := d.reading[m.rel]; event || r == nil && !d.files[m.rel].is(&m) || r != nil && !sameFile(r.info, m.info) {
			d.changed[m.rel] = &change{listedFile: m, scan: d.scans}
		}
	}
	gone := func(rel string) bool { return !here[rel] && !w.isUnreadable(rel) }
	maps.DeleteFunc(d.files, func(rel string, _ *file) bool { return gone(rel) })
	maps.DeleteFunc(d.changed, func(rel string, _ *change) bool { return gone(rel) })
	return nil
}

// take returns files that are to be read now, or beside the scans.
func (d *directory) take(beside bool) (taken []*change) {
	var files []*change
	for rel, c := range d.changed {
		if !c.later && d.reading[rel] == nil {
			files = append(files, c)
		}
	}
	slices.SortFunc(files, func(a, b *change) int {
		if beside && a.scan != b.scan {
			return cmp.Compare(a.scan, b.scan)
		}
		return cmp.Or(cmp.Compare(a.info.Size(), b.info.Size()), cmp.Compare(a.rel, b.rel))
	})
	room := int64(eagerBytes)
	if beside {
		room = lateBytes
	}
	if !d.stepwise {
		room = math.MaxInt64
	}
	for _, c := range files {
		if room <= 0 || !beside && room < c.info.Size() {
			break
		}
		room -= c.info.Size()
		delete(d.changed, c.rel)
		c.old = d.files[c.rel]
		taken = append(taken, c)
	}
	return taken
}

// read reads small files that have changed, and begins to read others. It may be called when those have been read.
func (d *directory) read(ctx context.Context) {
	parallel := runtime.GOMAXPROCS(0)
	if d.stepwise {
		files := d.take(false)
		readAll(ctx, files, parallel)
		d.finish(files)
		parallel = 1
	}
	if len(d.reading) > 0 {
		return
	}
	files := d.take(true)
	for _, c := range files {
		d.reading[c.rel] = c
	}
	if len(files) > 0 {
		go func() {
			readAll(ctx, files, parallel)
			d.reads <- files
		}()
	}
}

func readAll(ctx context.Context, files []*change, parallel int) {
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, c := range files {
		g.Go(func() error {
			c.file, c.open, c.err = c.listedFile.read(ctx, c.old)
			return nil
		})
	}
	_ = g.Wait()
}

// finish uses files that have been read.
func (d *directory) finish(files []*change) {
	for _, c := range files {
		delete(d.reading, c.rel)
		switch {
		case errors.Is(c.err, fs.ErrNotExist): // gone since it was listed: the next scan misses it
		case c.err != nil:
			if safefile.IsTemporary(c.err) {
				d.held[c.path] = true
			}
			d.files[c.rel] = &file{
				realPath: c.realPath, info: c.info, docs: c.old.documents(), problem: &source.Problem{File: c.rel, Err: withKeptNote(c.err, c.old)},
			}
		case c.open && d.patient && c.isWritten():
			if newer := d.changed[c.rel]; newer != nil {
				c.listedFile = newer.listedFile
			} else {
				c.later = true
			}
			d.changed[c.rel] = c
		default:
			d.files[c.rel] = c.file
		}
	}
}

// isWritten reports whether a file that is open for writing has changed recently.
func (c *change) isWritten() bool {
	c.idle++
	if c.last == nil || !sameFile(c.last, c.file.info) {
		c.last, c.idle = c.file.info, 0
	}
	return c.idle <= maxIdleReads
}

// retry lets the next scan read what the scans before have left. It adds to dirty what may have changed before them.
func (d *directory) retry(dirty pathSet) {
	for _, c := range d.changed {
		c.later = false
	}
	maps.Copy(dirty, d.held)
	clear(d.held)
}

// isWaiting reports whether files are open for writing.
func (d *directory) isWaiting() bool {
	for _, c := range d.changed {
		if c.later {
			return true
		}
	}
	return false
}

// isRead reports whether all files have been read at least once.
func (d *directory) isRead() bool {
	for _, list := range []map[string]*change{d.changed, d.reading} {
		for rel := range list {
			if d.files[rel] == nil {
				return false
			}
		}
	}
	return len(d.held) == 0
}

// oldest returns the first scan with a change that is still to be read, false if there is none.
func (d *directory) oldest() (scan int, ok bool) {
	for _, list := range []map[string]*change{d.changed, d.reading} {
		for _, c := range list {
			if !ok || c.scan < scan {
				scan, ok = c.scan, true
			}
		}
	}
	return scan, ok
}

func withKeptNote(err error, old *file) error {
	if len(old.documents()) == 0 {
		return err
	}
	return fmt.Errorf("%w; keeping the objects of its last valid version", err)
}

// pathSet is a set of paths of files to read again; the empty path stands for all.
type pathSet map[string]bool

// has reports whether a file is to be read again.
func (s pathSet) has(m *listedFile) bool { return s[m.path] || s[m.realPath] || s[""] }
