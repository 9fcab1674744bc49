// Package dir reads cluster state from a folder of manifests, and watches it: every *.yaml, *.yml and *.json in the
// folder and below it, in the order of their paths. It understands what kubectl get -o yaml prints.
//
// Bad input never takes away what was good: a file that cannot be parsed keeps its last good objects, a bad field is
// dropped alone, and each is reported once as a source.Problem that names file, object and field.
package dir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// How long the folder must be quiet before it is read, and how long a file that was moved away may take to come
// back: editors save by renaming. A single change costs quiet, a burst at most patience.
const (
	quietPeriod = 3 * time.Millisecond
	renameGrace = 25 * time.Millisecond
	maxSettle   = 100 * time.Millisecond
)

// Options are what a Source needs of the outside. The zero value works: it logs nowhere, coalesces only what has
// already happened, and never polls.
type Options struct {
	Log *slog.Logger
	// After is time.After, to wait for the end of a burst. Nil: do not wait.
	After func(time.Duration) <-chan time.Time
	// Poll, when it ticks, has the folder looked at again: for file systems that do not tell of changes, such as NFS.
	Poll <-chan time.Time
	// OnProblems, when set, is told how many problems there are, of those that cost something and of warnings, whenever
	// the folder has been read.
	OnProblems func(errors, warnings int)
}

// Source is a watched folder. It implements engine.Source.
type Source struct {
	root string
	opt  Options
}

// New makes a source of the folder at root, which Run opens.
func New(root string, opt Options) *Source {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{root: root, opt: opt}
}

// Load reads a folder once. The error is about the folder itself; everything else is a problem, sorted by file.
func Load(root string) (*model.Snapshot, []source.Problem, error) {
	f := newDirectory(root)
	if err := f.scan(nil, nil); err != nil {
		return nil, nil, err
	}
	snap := model.NewSnapshot()
	changes, problems := f.merge()
	for _, c := range changes {
		snap.Apply(c)
	}
	snap.Apply(model.Change{Kind: model.Synced})
	return snap, problems, nil
}

// Run emits the folder's objects, then Synced, then what changes, until ctx ends. It fails only when the folder
// cannot be read or watched at the start; when it goes away later, its objects stay and Run waits for it to return.
func (s *Source) Run(ctx context.Context, emit func([]model.Change)) error {
	root, err := filepath.Abs(s.root)
	if err != nil {
		return fmt.Errorf("source folder %s: %w", s.root, err)
	}
	w, err := fsnotify.NewBufferedWatcher(256)
	if err != nil {
		return fmt.Errorf("source folder %s: watch: %w", s.root, err)
	}
	defer w.Close()
	f := newDirectory(root)
	if s.opt.After != nil {
		f.writing = map[string]*writeState{}
	}
	e := &watcher{fs: w, root: root, after: s.opt.After, log: s.opt.Log, watched: map[string]bool{}}
	l := &problemLog{log: s.opt.Log, onCount: s.opt.OnProblems, logged: map[string]bool{}}
	if err := e.add(filepath.Dir(root)); err != nil {
		s.opt.Log.Warn("parent of the source folder is not watched: its replacement will not be seen", "err", err)
	}
	if err := e.scan(f, nil); err != nil {
		return err
	}
	if !e.watched[root] {
		return fmt.Errorf("source folder %s: %w", s.root, errors.Join(problemErrors(e.problems)...))
	}
	for len(f.writing) > 0 { // what is being written belongs to the first state
		dirty, ok := e.wait(ctx, f, s.opt.Poll)
		if !ok {
			return nil
		}
		if err := e.scan(f, dirty); err != nil {
			return err
		}
	}
	changes, problems := f.merge()
	l.report(append(e.problems, problems...))
	s.opt.Log.Info("source folder read", "folder", s.root, "files", len(f.files), "objects", len(changes))
	emit(append(changes, model.Change{Kind: model.Synced}))

	for {
		dirty, ok := e.wait(ctx, f, s.opt.Poll)
		if !ok {
			return nil
		}
		if err := e.scan(f, dirty); err != nil {
			e.problems = append(e.problems, source.Problem{Err: fmt.Errorf("%w: its objects are kept", err)})
		}
		changes, problems := f.merge()
		l.report(append(e.problems, problems...))
		if len(changes) > 0 {
			s.opt.Log.Debug("source folder changed", "folder", s.root, "objects", len(changes))
			emit(changes)
		}
	}
}

// problemLog logs a problem when it appears, and again only after it was gone.
type problemLog struct {
	log     *slog.Logger
	onCount func(errors, warnings int) // may be nil
	logged  map[string]bool
}

func (l *problemLog) report(problems []source.Problem) {
	now := make(map[string]bool, len(problems))
	bad, warnings := 0, 0
	for _, p := range problems {
		text := p.Error()
		if p.Warning {
			warnings++
		} else {
			bad++
		}
		if !l.logged[text] && !now[text] {
			level := slog.LevelError
			if p.Warning {
				level = slog.LevelWarn
			}
			l.log.Log(context.Background(), level, "manifest problem", attributes(p)...)
		}
		now[text] = true
	}
	for _, text := range slices.Sorted(maps.Keys(l.logged)) {
		if !now[text] {
			l.log.Info("manifest problem is gone", "was", text)
		}
	}
	l.logged = now
	if l.onCount != nil {
		l.onCount(bad, warnings)
	}
}

// attributes are what is known of a problem.
func attributes(p source.Problem) []any {
	var out []any
	if p.File != "" {
		out = append(out, "file", p.File)
	}
	if p.Line > 0 {
		out = append(out, "line", p.Line)
	}
	if p.Object != "" {
		out = append(out, "object", p.Object)
	}
	if p.Field != "" {
		out = append(out, "field", p.Field)
	}
	return append(out, "err", p.Err)
}

func problemErrors(problems []source.Problem) []error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errs
}
