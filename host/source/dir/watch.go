package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/host/source"
)

// watcher watches directories and coalesces their events into scans.
type watcher struct {
	fs       *fsnotify.Watcher
	parent   <-chan fsnotify.Event // of the root, in its parent directory
	root     string
	after    func(time.Duration) <-chan time.Time
	log      *slog.Logger
	watched  map[string]bool
	scanned  map[string]bool  // directories that the last scan went through
	problems []source.Problem // of the last scan
	// unwatched: some directories could not be watched in the last scan.
	unwatched  bool
	retryDelay time.Duration
}

// scanUntil is scan, unless ctx ends before: decoding a large file takes seconds, and cannot be interrupted. The scan then goes on alone,
// and f may not be used any more.
func (e *watcher) scanUntil(ctx context.Context, f *directory, dirty pathSet) error {
	done := make(chan error, 1)
	go func() { done <- e.scan(f, dirty) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scan scans f and watches exactly its directories. A directory is watched before it is listed, so that no change is
// missed in between.
func (e *watcher) scan(f *directory, dirty pathSet) error {
	e.problems, e.unwatched = nil, false
	inside := map[string]bool{}
	err := f.scan(dirty, func(path string) {
		inside[path] = true
		if err := e.add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			e.unwatched = true
			e.problems = append(e.problems, source.Problem{
				File: path, Err: fmt.Errorf("watch: %w; changes in it are noticed late (is fs.inotify.max_user_watches reached?)", err),
			})
		}
	})
	if err != nil {
		return err
	}
	for path := range e.watched {
		if !inside[path] {
			e.remove(path)
		}
	}
	e.scanned = inside
	return nil
}

func (e *watcher) add(path string) error {
	if e.watched[path] {
		return nil
	}
	if err := e.fs.Add(path); err != nil {
		return err
	}
	e.watched[path] = true
	return nil
}

func (e *watcher) remove(path string) {
	_ = e.fs.Remove(path) // may already be removed
	delete(e.watched, path)
}

// burst collects the events since the last scan.
type burst struct {
	dirty     pathSet
	missing   map[string]bool // manifests that were moved or removed and have not reappeared
	triggered bool
}

// wait blocks until there was an event and the directory is quiet again, and returns the files that may have changed. It
// reports false when ctx has ended.
func (e *watcher) wait(ctx context.Context, f *directory, poll <-chan time.Time) (pathSet, bool) {
	b := &burst{dirty: pathSet{}, missing: map[string]bool{}}
	again := e.scanAgain(f, b)
	for !b.triggered {
		select {
		case <-again:
			return b.dirty, true
		case <-f.late.results():
			return b.dirty, true
		case <-ctx.Done():
			return nil, false
		case ev := <-e.fs.Events:
			e.handleEvent(b, f, ev)
		case ev := <-e.parent:
			e.handleEvent(b, f, ev)
		case err := <-e.fs.Errors:
			e.handleError(b, err)
		case <-poll:
			b.triggered = true
		}
	}
	if !e.settle(ctx, f, b) {
		return nil, false
	}
	return b.dirty, true
}

// scanAgain returns when the directory is to be scanned without an event: soon if files were being written, and with an
// increasing delay if something could not be read or watched for a temporary reason.
func (e *watcher) scanAgain(f *directory, b *burst) <-chan time.Time {
	failed := e.unwatched || f.retry != nil
	if !failed {
		e.retryDelay = minRetry
	}
	if e.after == nil {
		return nil
	}
	for path := range f.writing {
		b.dirty[path] = false
	}
	maps.Copy(b.dirty, f.retry)
	switch {
	case len(f.writing) > 0:
		return e.after(renameGrace)
	case failed:
		delay := e.retryDelay
		e.retryDelay = min(2*delay, maxRetry)
		return e.after(delay)
	}
	return nil
}

// settle handles events until none has arrived for quietPeriod, at most for maxSettle.
func (e *watcher) settle(ctx context.Context, f *directory, b *burst) bool {
	if e.after == nil {
		for {
			select {
			case ev := <-e.fs.Events:
				e.handleEvent(b, f, ev)
			case ev := <-e.parent:
				e.handleEvent(b, f, ev)
			default:
				return true
			}
		}
	}
	end := e.after(maxSettle)
	for {
		pause := quietPeriod
		if len(b.missing) > 0 {
			pause = renameGrace
		}
		select {
		case <-ctx.Done():
			return false
		case ev := <-e.fs.Events:
			e.handleEvent(b, f, ev)
		case ev := <-e.parent:
			e.handleEvent(b, f, ev)
		case err := <-e.fs.Errors:
			e.handleError(b, err)
		case <-e.after(pause):
			return true
		case <-end:
			return true
		}
	}
}

// handleEvent records an event. Of the root's parent only events of the root itself count.
func (e *watcher) handleEvent(b *burst, f *directory, ev fsnotify.Event) {
	if !e.scanned[filepath.Dir(ev.Name)] && !e.watched[ev.Name] && ev.Name != e.root {
		return
	}
	b.triggered = true
	b.dirty[ev.Name] = true
	if (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)) && f.hasFile(ev.Name) {
		b.missing[ev.Name] = true
	}
	if ev.Has(fsnotify.Create) || ev.Has(fsnotify.Write) {
		delete(b.missing, ev.Name)
	}
	// Another directory may have taken the name of a watched one; the scan watches it again.
	if e.watched[ev.Name] && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) || ev.Has(fsnotify.Create)) {
		e.remove(ev.Name)
	}
}

// handleError schedules a scan of all files, because events were lost.
func (e *watcher) handleError(b *burst, err error) {
	b.triggered = true
	b.dirty[""] = true
	if !errors.Is(err, fsnotify.ErrEventOverflow) {
		e.log.Warn("error while watching the source directory", "err", err)
	}
}
