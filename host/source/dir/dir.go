// Package dir reads and watches cluster state in a directory of manifests: all *.yaml, *.yml and *.json files in the
// directory and below it, in the order of their paths, in the form that kubectl get -o yaml prints.
//
// Invalid input never removes valid state: a file that cannot be parsed keeps its last valid objects, and an invalid
// field is dropped alone. Each is reported once as a source.Problem with file, object and field.
package dir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Delays between an event and the scan.
const (
	quietPeriod = 3 * time.Millisecond   // without further events
	renameGrace = 25 * time.Millisecond  // for a file that was moved away to come back: editors save by renaming
	maxSettle   = 100 * time.Millisecond // limit for a burst of events
)

// Delay of a scan after one that could not read or watch something for a temporary reason, such as too many open files. It
// doubles from the minimum to the maximum.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 30 * time.Second
)

// Options configure a Source. The zero value does not log, coalesces only events that have already arrived, and does not
// poll.
type Options struct {
	Log *slog.Logger
	// After is time.After, to wait for the end of a burst of events. Nil: do not wait.
	After func(time.Duration) <-chan time.Time
	// Poll triggers a scan, for file systems without change events, such as NFS. It may be nil.
	Poll <-chan time.Time
	// OnProblems is called with the number of problems after each scan. It may be nil.
	OnProblems func(errorCount, warningCount int)
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
	return &Source{root: root, opt: opt}
}

// Load reads a directory, or one file, once. The error is about the directory or the file itself; all other problems are returned sorted
// by file.
func Load(root string) (*model.Snapshot, []source.Problem, error) {
	f := newDirectory(root)
	if info, err := os.Stat(root); err == nil && info.Mode().IsRegular() {
		rel := filepath.Base(root)
		read, err := listedFile{path: root, rel: rel, realPath: root, info: info}.read(nil)
		if err != nil {
			return nil, nil, err
		}
		f.files[rel] = read
	} else if err := f.scan(nil, nil); err != nil {
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

// Run emits the directory's objects, then Synced, then changes, until ctx ends. It fails only if the directory cannot be
// read or watched at the start. If the directory is removed later, its objects stay and Run waits for it to return.
func (s *Source) Run(ctx context.Context, emit func([]model.Change)) error {
	root, err := filepath.Abs(s.root)
	if err != nil {
		return fmt.Errorf("source directory %s: %w", s.root, err)
	}
	w, err := fsnotify.NewBufferedWatcher(256)
	if err != nil {
		return fmt.Errorf("source directory %s: watch: %w", s.root, err)
	}
	// Not waited for: closing an inotify instance waits for a grace period of the kernel (SRCU), seconds on a machine with too much load.
	defer func() { go w.Close() }()
	f := newDirectory(root)
	if s.opt.After != nil {
		f.writing = map[string]*writeState{}
	}
	e := &watcher{fs: w, root: root, after: s.opt.After, log: s.opt.Log, watched: map[string]bool{}, retryDelay: minRetry}
	l := &problemLog{log: s.opt.Log, onCount: s.opt.OnProblems, logged: map[string]bool{}}
	parent, stop, err := watchParent(root)
	if err != nil {
		s.opt.Log.Warn("cannot watch the parent of the source directory; its replacement will not be noticed", "err", err)
	} else {
		defer stop()
		e.parent = parent
	}
	if err := e.scanUntil(ctx, f, nil); err != nil {
		return unlessEnded(ctx, err)
	}
	if !e.watched[root] {
		return fmt.Errorf("source directory %s: %w", s.root, errors.Join(problemErrors(e.problems)...))
	}
	// Files that are being written, or could not be opened, belong to the initial state.
	for len(f.writing) > 0 || f.retry != nil && s.opt.After != nil {
		dirty, ok := e.wait(ctx, f, s.opt.Poll)
		if !ok {
			return nil
		}
		if err := e.scanUntil(ctx, f, dirty); err != nil {
			return unlessEnded(ctx, err)
		}
	}
	changes, problems := f.merge()
	l.report(append(e.problems, problems...))
	s.opt.Log.Info("read source directory", "path", s.root, "files", len(f.files), "objects", len(changes))
	emit(append(changes, model.Change{Kind: model.Synced}))
	f.late = newLateReads()
	defer f.late.stop()

	for {
		dirty, ok := e.wait(ctx, f, s.opt.Poll)
		if !ok {
			return nil
		}
		if err := e.scanUntil(ctx, f, dirty); ctx.Err() != nil {
			return nil
		} else if err != nil {
			e.problems = append(e.problems, source.Problem{Err: fmt.Errorf("%w; keeping its objects", err)})
		}
		changes, problems := f.merge()
		l.report(append(e.problems, problems...))
		if len(changes) > 0 {
			s.opt.Log.Debug("source directory changed", "path", s.root, "changes", len(changes))
			emit(changes)
		}
	}
}

// unlessEnded returns the error of a scan, nil if ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func problemErrors(problems []source.Problem) []error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errs
}
