package dir

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

// A scan reads changed files until they have eagerBytes, the smallest first. The others are read after it, one at a time, so that the changes
// of the first do not wait for them: decoding takes 10 to 20 ms for a MiB. A scan follows after each lateBytes of them, and after the last.
const (
	eagerBytes = 256 << 10
	lateBytes  = 1 << 20
)

// lateReads are the files that are read after the scan that has found a change of them. All methods but work are for the goroutine that scans.
type lateReads struct {
	ended  chan struct{}        // see results
	byPath map[string]*lateRead // whose results no scan has taken
	failed map[string]error     // of the last read of each file
	scans  int                  // begun

	mu      sync.Mutex
	queue   []*lateRead // to be done
	working bool
}

type lateRead struct {
	file  listedFile
	old   *file
	scan  int // that found the change
	again int // the scan that found a change since; 0: none

	done   bool // under lateReads.mu, as the queue
	result readResult
}

func newLateReads() *lateReads {
	return &lateReads{ended: make(chan struct{}, 1), byPath: map[string]*lateRead{}, failed: map[string]error{}}
}

// results returns a channel that has an element when a scan can take results.
func (l *lateReads) results() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.ended
}

// begin begins a scan that has found these files, and forgets others.
func (l *lateReads) begin(found []listedFile) {
	l.scans++
	here := map[string]bool{}
	for i := range found {
		here[found[i].path] = true
	}
	maps.DeleteFunc(l.byPath, func(path string, _ *lateRead) bool { return !here[path] })
	maps.DeleteFunc(l.failed, func(path string, _ error) bool { return !here[path] })
}

// isPending reports whether a read of the file has begun whose result was not taken.
func (l *lateReads) isPending(path string) bool { return l != nil && l.byPath[path] != nil }

// take returns the result of the file's read, and whether there is one. While there is none, it is the error of the last read, if it had one. The
// first call, and one that finds a change since, begins a read.
func (l *lateReads) take(m listedFile, old *file, event bool) (result readResult, taken bool) {
	none := readResult{err: l.failed[m.path]}
	r := l.byPath[m.path]
	if r == nil {
		l.start(&lateRead{file: m, old: old, scan: l.scans})
		return none, false
	}
	if r.again == 0 && (event || !sameFile(r.file.info, m.info)) {
		r.again = l.scans
	}
	l.mu.Lock()
	done := r.done
	l.mu.Unlock()
	switch {
	case !done:
		return none, false
	case r.again > 0:
		l.start(&lateRead{file: m, old: old, scan: r.again})
		return none, false
	}
	delete(l.byPath, m.path)
	delete(l.failed, m.path)
	switch {
	case errors.Is(r.result.err, fs.ErrNotExist): // but this scan has found it
		return readResult{}, false
	case r.result.err != nil:
		l.failed[m.path] = r.result.err
	}
	return r.result, true
}

func (l *lateReads) start(r *lateRead) {
	l.byPath[r.file.path] = r
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, r)
	if !l.working {
		l.working = true
		go l.work()
	}
}

// oldest returns the first scan with a change that is still to be read, false if there is none.
func (l *lateReads) oldest() (scan int, ok bool) {
	if l == nil {
		return 0, false
	}
	for _, r := range l.byPath {
		if !ok || r.scan < scan {
			scan, ok = r.scan, true
		}
	}
	return scan, ok
}

// work reads the files of the queue.
func (l *lateReads) work() {
	size := int64(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 {
		r := l.queue[0]
		l.queue[0] = nil // it may be large
		l.queue = l.queue[1:]
		l.mu.Unlock()
		fresh, err := r.file.read(r.old)
		size += r.file.info.Size()
		l.mu.Lock()
		r.done, r.result = true, readResult{fresh, err}
		if size >= lateBytes || len(l.queue) == 0 {
			size = 0
			select {
			case l.ended <- struct{}{}:
			default: // the next scan takes this one too
			}
		}
	}
	l.working = false
}

// stop forgets the files that are still to be read.
func (l *lateReads) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = nil
}

// eager sorts the changed ones of the found files by size, and returns how many of them a scan reads.
func eager(found []listedFile, changed []int) (n int) {
	slices.SortStableFunc(changed, func(a, b int) int { return cmp.Compare(found[a].info.Size(), found[b].info.Size()) })
	for size := int64(0); n < len(changed); n++ {
		if size += found[changed[n]].info.Size(); size > eagerBytes {
			break
		}
	}
	return n
}
