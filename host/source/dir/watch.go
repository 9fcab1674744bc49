package dir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/host/source"
)

// watcher knows which folders are watched, and turns their events into reasons to scan.
type watcher struct {
	fs       *fsnotify.Watcher
	root     string
	after    func(time.Duration) <-chan time.Time
	log      *slog.Logger
	watched  map[string]bool
	scanned  map[string]bool  // of those, what the last scan went through: all but the root's parent, mostly
	problems []source.Problem // of the last scan
}

// scan scans f and has exactly its folders watched. A folder is watched before it is listed, so that nothing is
// missed in between.
func (e *watcher) scan(f *directory, dirty pathSet) error {
	e.problems = nil
	inside := map[string]bool{}
	err := f.scan(dirty, func(path string) {
		inside[path] = true
		if err := e.add(path); err != nil {
			e.problems = append(e.problems, source.Problem{
				File: path, Err: fmt.Errorf("watch: %w: changes in it are not seen (is fs.inotify.max_user_watches reached?)", err),
			})
		}
	})
	if err != nil {
		return err
	}
	for path := range e.watched {
		if !inside[path] && path != filepath.Dir(e.root) {
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
	_ = e.fs.Remove(path) // it may be gone already
	delete(e.watched, path)
}

// burst is what has happened since the last scan.
type burst struct {
	dirty     pathSet
	missing   map[string]bool // manifests that were moved or removed, and are not back yet
	triggered bool
}

// wait blocks until something has happened and the folder is quiet again, and names the files that may differ. It
// reports false when ctx has ended.
func (e *watcher) wait(ctx context.Context, f *directory, poll <-chan time.Time) (pathSet, bool) {
	b := &burst{dirty: pathSet{}, missing: map[string]bool{}}
	var again <-chan time.Time
	if len(f.writing) > 0 {
		again = e.after(renameGrace)
		for path := range f.writing {
			b.dirty[path] = true
		}
	}
	for !b.triggered {
		select {
		case <-again:
			return b.dirty, true
		case <-ctx.Done():
			return nil, false
		case ev := <-e.fs.Events:
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

// settle takes in events until none has come for a while.
func (e *watcher) settle(ctx context.Context, f *directory, b *burst) bool {
	if e.after == nil {
		for {
			select {
			case ev := <-e.fs.Events:
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
		case err := <-e.fs.Errors:
			e.handleError(b, err)
		case <-e.after(pause):
			return true
		case <-end:
			return true
		}
	}
}

// handleEvent takes an event in. The parent of the root is watched only for what happens to the root itself.
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
	// Another folder may have taken the name of a watched one; the scan watches it anew.
	if e.watched[ev.Name] && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) || ev.Has(fsnotify.Create)) {
		e.remove(ev.Name)
	}
}

// handleError has everything read again: events are gone, and nobody knows which.
func (e *watcher) handleError(b *burst, err error) {
	b.triggered = true
	b.dirty[""] = true
	if !errors.Is(err, fsnotify.ErrEventOverflow) {
		e.log.Warn("source folder watch", "err", err)
	}
}
