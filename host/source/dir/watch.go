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
	inside   map[string]bool  // of those, what the last scan went through: all but the root's parent, mostly
	problems []source.Problem // of the last scan
}

// scan scans f and has exactly its folders watched. A folder is watched before it is listed, so that nothing is
// missed in between.
func (e *watcher) scan(f *folder, dirty names) error {
	e.problems = nil
	inside := map[string]bool{}
	err := f.scan(dirty, func(path string) {
		inside[path] = true
		if err := e.follow(path); err != nil {
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
			e.leave(path)
		}
	}
	e.inside = inside
	return nil
}

func (e *watcher) follow(path string) error {
	if e.watched[path] {
		return nil
	}
	if err := e.fs.Add(path); err != nil {
		return err
	}
	e.watched[path] = true
	return nil
}

func (e *watcher) leave(path string) {
	_ = e.fs.Remove(path) // it may be gone already
	delete(e.watched, path)
}

// burst is what has happened since the last scan.
type burst struct {
	dirty names
	away  map[string]bool // manifests that were moved or removed, and are not back yet
	any   bool
}

// wait blocks until something has happened and the folder is quiet again, and names the files that may differ. It
// reports false when ctx has ended.
func (e *watcher) wait(ctx context.Context, f *folder, poll <-chan time.Time) (names, bool) {
	b := &burst{dirty: names{}, away: map[string]bool{}}
	var again <-chan time.Time
	if len(f.busy) > 0 {
		again = e.after(absence)
		for path := range f.busy {
			b.dirty[path] = true
		}
	}
	for !b.any {
		select {
		case <-again:
			return b.dirty, true
		case <-ctx.Done():
			return nil, false
		case ev := <-e.fs.Events:
			e.note(b, f, ev)
		case err := <-e.fs.Errors:
			e.lost(b, err)
		case <-poll:
			b.any = true
		}
	}
	if !e.settle(ctx, f, b) {
		return nil, false
	}
	return b.dirty, true
}

// settle takes in events until none has come for a while.
func (e *watcher) settle(ctx context.Context, f *folder, b *burst) bool {
	if e.after == nil {
		for {
			select {
			case ev := <-e.fs.Events:
				e.note(b, f, ev)
			default:
				return true
			}
		}
	}
	end := e.after(patience)
	for {
		pause := quiet
		if len(b.away) > 0 {
			pause = absence
		}
		select {
		case <-ctx.Done():
			return false
		case ev := <-e.fs.Events:
			e.note(b, f, ev)
		case err := <-e.fs.Errors:
			e.lost(b, err)
		case <-e.after(pause):
			return true
		case <-end:
			return true
		}
	}
}

// note takes an event in. The parent of the root is watched only for what happens to the root itself.
func (e *watcher) note(b *burst, f *folder, ev fsnotify.Event) {
	if !e.inside[filepath.Dir(ev.Name)] && !e.watched[ev.Name] && ev.Name != e.root {
		return
	}
	b.any = true
	b.dirty[ev.Name] = true
	if (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)) && f.holds(ev.Name) {
		b.away[ev.Name] = true
	}
	if ev.Has(fsnotify.Create) || ev.Has(fsnotify.Write) {
		delete(b.away, ev.Name)
	}
	// Another folder may have taken the name of a watched one; the scan watches it anew.
	if e.watched[ev.Name] && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) || ev.Has(fsnotify.Create)) {
		e.leave(ev.Name)
	}
}

// lost has everything read again: events are gone, and nobody knows which.
func (e *watcher) lost(b *burst, err error) {
	b.any = true
	b.dirty[""] = true
	if !errors.Is(err, fsnotify.ErrEventOverflow) {
		e.log.Warn("source folder watch", "err", err)
	}
}
