package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Delays between an event and the scan.
const (
	quietPeriod = 3 * time.Millisecond  // without further events
	renameGrace = 25 * time.Millisecond // for a file that was moved away to come back: editors save by renaming
	maxSettle   = 50 * time.Millisecond // limit for a burst of events
)

// lookPeriod is how often the path of the directory is looked up: no event tells that it leads to another one.
const lookPeriod = 200 * time.Millisecond

// Delay of a scan after one that could not read or watch something for a temporary reason, such as too many open files. It
// doubles from the minimum to the maximum.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 30 * time.Second
)

// watcher decides when a directory is scanned.
type watcher struct {
	fs       *fsnotify.Watcher
	dir      *directory
	opt      Options
	dirty    pathSet          // what events have named since the last scan
	problems []source.Problem // folders that the last scan could not watch

	look       <-chan time.Time
	writers    <-chan time.Time // set while files are open for writing
	retry      <-chan time.Time // set while something fails
	retryDelay time.Duration
}

// Run emits the directory's objects, then Synced, then changes, until ctx ends. It fails only if the directory cannot be
// read or watched at the start. If the directory is removed later, its objects stay and Run waits for it to return.
func (s *Source) Run(ctx context.Context, emit func([]model.Change)) error {
	root, err := filepath.Abs(s.root)
	if err != nil {
		return fmt.Errorf("source directory %s: %w", s.root, err)
	}
	events, err := fsnotify.NewBufferedWatcher(256)
	if err != nil {
		return fmt.Errorf("source directory %s: watch: %w", s.root, err)
	}
	// Not waited for: closing an inotify instance waits for a grace period of the kernel (SRCU), seconds on a machine with too much load.
	defer func() { go events.Close() }()
	d := newDirectory(root)
	d.patient = true
	w := &watcher{fs: events, dir: d, opt: s.opt, dirty: pathSet{}, look: s.opt.After(lookPeriod), retryDelay: minRetry}
	l := &problemLog{log: s.opt.Log, onCount: s.opt.OnProblems, logged: map[string]bool{}}
	for synced, scan := false, true; ; {
		if scan {
			err = w.scan(synced)
		}
		if err != nil {
			return err
		}
		if d.read(ctx); ctx.Err() != nil {
			return nil
		}
		if synced || d.isRead() {
			changes, problems := d.merge()
			l.report(slices.Concat(w.problems, problems))
			if !synced {
				s.opt.Log.Info("read source directory", "path", s.root, "files", len(d.files), "objects", len(changes))
				changes = append(changes, model.Change{Kind: model.Synced})
				synced, d.stepwise = true, true
			}
			if len(changes) > 0 {
				s.opt.Log.Debug("source directory changed", "path", s.root, "changes", len(changes))
				emit(changes)
			}
		}
		if scan = w.wait(ctx); ctx.Err() != nil {
			return nil
		}
	}
}

// scan lists the directory and watches exactly its folders. A folder is watched before it is listed, so that no change is
// missed in between. It fails only before the first state is known.
func (w *watcher) scan(synced bool) error {
	root := w.dir.root
	w.problems = nil
	inside := map[string]bool{}
	err := w.dir.list(w.dirty, func(path string) {
		inside[path] = true
		if err := w.fs.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.problems = append(w.problems, source.Problem{
				File: path, Err: fmt.Errorf("watch: %w; changes in it are noticed late (is fs.inotify.max_user_watches reached?)", err),
			})
		}
	})
	w.dirty = pathSet{}
	if err == nil && !synced && len(w.problems) > 0 && w.problems[0].File == root {
		err = w.problems[0].Err
	}
	if err != nil {
		if err = fmt.Errorf("source directory %s: %w", root, err); !synced {
			return err
		}
		w.problems = append(w.problems, source.Problem{Err: fmt.Errorf("%w; keeping its objects", err)})
		return nil
	}
	for _, path := range w.fs.WatchList() {
		if !inside[path] {
			_ = w.fs.Remove(path) // may already be removed
		}
	}
	return nil
}

// setTimers sets the timers of what is to be tried again without an event.
func (w *watcher) setTimers() {
	if !w.dir.isWaiting() {
		w.writers = nil
	} else if w.writers == nil {
		w.writers = w.opt.After(renameGrace)
	}
	if len(w.dir.held)+len(w.problems) == 0 {
		w.retry, w.retryDelay = nil, minRetry
	} else if w.retry == nil {
		w.retry = w.opt.After(w.retryDelay)
		w.retryDelay = min(2*w.retryDelay, maxRetry)
	}
}

// wait blocks until the directory is to be scanned; or until files have been read beside, or ctx has ended: then it reports false.
func (w *watcher) wait(ctx context.Context) (scan bool) {
	w.setTimers()
	var quiet, limit <-chan time.Time // set during a burst of events
	missing := map[string]bool{}      // manifests that were moved or removed and have not reappeared
	look, writers, retry, reads := w.look, w.writers, w.retry, w.dir.reads
	for {
		select {
		case <-ctx.Done():
			return false
		case <-quiet:
			return true
		case <-limit:
			return true
		case files := <-reads:
			w.dir.finish(files)
			return false
		case <-writers:
			w.writers = nil
			w.dir.retry(w.dirty)
			return true
		case <-retry:
			w.retry = nil
			w.dir.retry(w.dirty)
			return true
		case <-look:
			w.look = w.opt.After(lookPeriod)
			if look = w.look; w.isReplaced() {
				w.dir.retry(w.dirty)
				return true
			}
			continue
		case ev := <-w.fs.Events:
			w.note(ev, missing)
		case err := <-w.fs.Errors:
			w.dirty[""] = true // events were lost
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.opt.Log.Warn("error while watching the source directory", "err", err)
			}
		}
		look, writers, retry, reads = nil, nil, nil, nil // a burst is not interrupted
		if limit == nil {
			limit = w.opt.After(maxSettle)
		}
		if quiet = w.opt.After(quietPeriod); len(missing) > 0 {
			quiet = w.opt.After(renameGrace)
		}
	}
}

// note records an event.
func (w *watcher) note(ev fsnotify.Event, missing map[string]bool) {
	w.dirty[ev.Name] = true
	gone := ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)
	if gone && isManifest(ev.Name) {
		missing[ev.Name] = true
	}
	if ev.Has(fsnotify.Create) || ev.Has(fsnotify.Write) {
		delete(missing, ev.Name)
	}
	if gone || ev.Has(fsnotify.Create) {
		_ = w.fs.Remove(ev.Name) // another folder may have the name of a watched one now: the scan watches it again
	}
}

// isReplaced reports whether the path of the directory leads elsewhere since the last scan. Then nothing is watched until
// the next one.
func (w *watcher) isReplaced() bool {
	info, err := os.Stat(w.dir.root)
	last := w.dir.info
	if err != nil && last == nil || err == nil && last != nil && os.SameFile(info, last) {
		return false
	}
	for _, path := range w.fs.WatchList() {
		_ = w.fs.Remove(path)
	}
	return true
}
