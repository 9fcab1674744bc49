// Package dir reads and watches cluster state in a directory of manifests: all *.yaml, *.yml and *.json files in the
// directory and below it, in the order of their paths, in the form that kubectl get -o yaml prints.
//
// Invalid input never removes valid state: a file that cannot be parsed keeps its last valid objects, and an invalid
// field is dropped alone. Each is reported once as a source.Problem with file, object and field.
package dir

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Options configure a Source.
type Options struct {
	Log *slog.Logger // nil: no log
	// OnProblems is called with the number of problems after each scan. It may be nil.
	OnProblems func(errors, warnings int)
	// After is time.After if it is nil.
	After func(time.Duration) <-chan time.Time
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

// Load reads a directory, or one file, once. The error is about the directory or the file itself; all other problems are
// returned sorted by file.
func Load(root string) (*model.Snapshot, []source.Problem, error) {
	d := newDirectory(root)
	if info, err := os.Stat(root); err == nil && info.Mode().IsRegular() {
		m := &listedFile{path: root, rel: filepath.Base(root), realPath: root, info: info}
		f, _, err := m.read(context.Background(), nil)
		if err != nil {
			return nil, nil, err
		}
		d.files[m.rel] = f
	} else if err := d.list(pathSet{}, func(string) {}); err != nil {
		return nil, nil, fmt.Errorf("source directory %s: %w", root, err)
	}
	files := d.take(true)
	readAll(context.Background(), files, runtime.GOMAXPROCS(0))
	d.finish(files)
	snap := model.NewSnapshot()
	changes, problems := d.merge()
	for _, c := range changes {
		snap.Apply(c)
	}
	snap.Apply(model.Change{Kind: model.Synced})
	return snap, problems, nil
}
