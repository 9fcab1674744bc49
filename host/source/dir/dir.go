// Package dir reads and watches cluster state in a directory of manifests: all *.yaml, *.yml and *.json files in the
// directory and below it, in the order of their paths, in the form that kubectl get -o yaml prints.
//
// Invalid input never removes valid state: a file that cannot be parsed keeps its last valid objects, and an invalid
// field is dropped alone. Each is reported once as a source.Problem with file, object and field.
package dir

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// directory is the last known content of a directory. One goroutine uses it.
type directory struct {
	root       string
	now        func() time.Time // nil: all files are read each time
	files      map[string]*file // by path relative to root, with slashes
	problems   problemList      // of what the last scan could not list
	incomplete error            // why the next scan may read more than the last one, with the name of a file; or nil
	last       map[key]*entry   // result of the last merge
}

// Load reads a directory, or one file, once. The error is about the directory or the file itself; all other problems are
// returned sorted by file.
func Load(root string) (*model.Snapshot, []source.Problem, error) {
	d := &directory{root: root, files: map[string]*file{}}
	ctx := context.Background()
	if info, err := os.Stat(root); err == nil && info.Mode().IsRegular() {
		if err := safefile.Check(root, maxFile); err != nil {
			return nil, nil, err
		}
		rel := filepath.Base(root)
		d.files[rel] = readFile(ctx, nil, rel, func() (*os.File, error) { return safefile.Open(root) }, &file{})
	} else if _, _, err := d.scan(ctx); err != nil {
		return nil, nil, fmt.Errorf("source directory %s: %w", root, err)
	}
	for rel, f := range d.files { // there is no next scan
		if f.temporary != nil && f.problem == nil {
			f.problem = &source.Problem{File: rel, Err: f.temporary}
		}
	}
	snap := model.NewSnapshot()
	changes, problems, _ := d.merge()
	for _, c := range changes {
		snap.Apply(c)
	}
	snap.Apply(model.Change{Kind: model.Synced})
	return snap, problems, nil
}

// scan reads what has changed, and reports whether something has. folders are those it found, by relative path. After an
// error nothing has changed.
func (d *directory) scan(ctx context.Context) (folders map[string]os.FileInfo, changed bool, err error) {
	w, err := walkRoot(d.root)
	if err != nil {
		return nil, false, err
	}
	defer w.root.Close()
	states := make([]*file, len(w.found))
	read := make([]int, 0, len(w.found))
	next := make(map[string]*file, len(w.found))
	for i, m := range w.found {
		if states[i] = cmp.Or(d.files[m.rel], &file{}); !states[i].is(m.info) {
			read = append(read, i)
		}
	}
	onAllCPUs(ctx, len(read), func(i int) {
		rel, state := w.found[read[i]].rel, &states[read[i]]
		*state = readFile(ctx, d.now, rel, func() (*os.File, error) { return w.root.OpenFile(rel, openFlags, 0) }, *state)
	})
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	for i, m := range w.found {
		next[m.rel] = states[i]
		if err := states[i].temporary; err != nil && w.temporary == nil {
			w.temporary = fmt.Errorf("%s: %w", m.rel, err)
		}
	}
	changed = len(read) > 0 || !w.problems.isEmpty() || !d.problems.isEmpty()
	for rel, f := range d.files {
		if next[rel] == nil && (!f.gone || w.isKept(rel)) {
			kept := *f
			kept.info, kept.gone = nil, !w.isKept(rel)
			next[rel] = &kept
			changed = changed || kept.gone
		}
	}
	d.files, d.problems, d.incomplete = next, w.problems, w.temporary
	return w.folders, changed, nil
}
