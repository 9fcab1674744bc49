package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/fswatch"
)

const (
	settle = 50 * time.Millisecond // from an event to the scan
	rescan = 2 * time.Second       // without events: for another directory at the path, and what could not be read or watched
)

// Options configure a Source.
type Options struct {
	Log *slog.Logger // nil: no log
	// OnProblems is called with the number of problems after each scan. It may be nil.
	OnProblems func(errors, warnings int)
	// After is time.After if it is nil.
	After func(time.Duration) <-chan time.Time
	// Now is compared with the times of files. If it is nil, all of them are read each time.
	Now func() time.Time
}

// Source watches a directory of manifests. It implements engine.Source.
type Source struct {
	root string
	opt  Options
}

// New returns a source of the directory root. Run opens it.
func New(root string, opt Options) *Source {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.After == nil {
		opt.After = time.After
	}
	return &Source{root: root, opt: opt}
}

// watcher decides when a directory is scanned.
type watcher struct {
	opt      Options
	fs       *fswatch.Watcher
	problems []source.Problem // folders that could not be watched
}

// Run emits the directory's objects, then Synced, then changes, until ctx ends. It fails only if the directory cannot be
// read or watched at the start. If the directory is removed later, its objects stay and Run waits for it to return.
func (s *Source) Run(ctx context.Context, emit func([]model.Change)) error {
	root, err := filepath.Abs(s.root)
	if err != nil {
		return fmt.Errorf("source directory %s: %w", s.root, err)
	}
	events, err := fswatch.New(256)
	if err != nil {
		return fmt.Errorf("source directory %s: watch: %w", s.root, err)
	}
	defer events.Close()
	d := &directory{root: root, now: s.opt.Now, files: map[string]*file{}}
	w := &watcher{opt: s.opt, fs: events}
	l := &problemLog{log: s.opt.Log, onCount: s.opt.OnProblems, logged: map[string]bool{}}
	var problems []source.Problem // of the last merge
	for synced, again := false, false; ; {
		folders, changed, err := d.scan(ctx)
		if ctx.Err() != nil {
			return nil
		}
		listed, added, failed := err == nil, false, len(w.problems) > 0
		if listed {
			added, err = w.watch(root, folders)
		}
		if err != nil && !synced {
			return fmt.Errorf("source directory %s: %w", root, err)
		}
		switch {
		case !listed: // nothing is known to be missing
			w.problems = []source.Problem{{Err: fmt.Errorf("source directory %s: %w; keeping its objects", root, err)}}
			l.report(slices.Concat(w.problems, problems))
		case !synced && d.incomplete != nil:
			s.opt.Log.Warn("cannot read all of the source directory yet", "path", s.root, "err", d.incomplete)
		case !synced || changed || again || failed || len(w.problems) > 0:
			var changes []model.Change
			changes, problems, again = d.merge()
			l.report(slices.Concat(w.problems, problems))
			if !synced {
				s.opt.Log.Info("read source directory", "path", s.root, "files", len(d.files), "objects", len(changes))
				changes = append(changes, model.Change{Kind: model.Synced})
				synced = true
			}
			if len(changes) > 0 {
				s.opt.Log.Debug("source directory changed", "path", s.root, "changes", len(changes))
				emit(changes)
			}
		}
		if !w.wait(ctx, listed && (again || added)) {
			return nil
		}
	}
}

// watch watches exactly the folders, and reports whether some of them are new: what is in them may have changed since they
// were listed. The error is about the directory itself.
func (w *watcher) watch(root string, folders map[string]fs.FileInfo) (added bool, err error) {
	inside := make(map[string]bool, len(folders))
	for rel := range folders {
		inside[filepath.Join(root, rel)] = true
	}
	for _, path := range w.fs.WatchList() {
		if !inside[path] {
			_ = w.fs.Remove(path) // may already be removed
		}
	}
	before := len(w.fs.WatchList())
	w.problems = nil
	for path := range inside { // those that are watched, too: another folder may have the name
		if wrong := w.fs.Add(path); wrong != nil {
			wrong = fmt.Errorf("watch: %w; changes in it are noticed after %s (is fs.inotify.max_user_watches reached?)", wrong, rescan)
			w.problems = append(w.problems, source.Problem{File: path, Err: wrong})
			if path == root {
				err = wrong
			}
		}
	}
	return len(w.fs.WatchList()) > before, err
}

// wait blocks until the directory is to be scanned, and reports whether ctx has not ended. soon: without an event, too.
func (w *watcher) wait(ctx context.Context, soon bool) bool {
	delay := rescan
	if soon {
		delay = settle
	}
	for timer := w.opt.After(delay); ; {
		select {
		case <-ctx.Done():
			return false
		case <-timer:
			return true
		case <-w.fs.Events:
		case err := <-w.fs.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.opt.Log.Warn("error while watching the source directory", "err", err)
			}
		}
		if !soon {
			soon, timer = true, w.opt.After(settle)
		}
	}
}
