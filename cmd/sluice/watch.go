package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quietPeriod is how long files must be quiet before they are read: writers and editors touch a file several times.
const quietPeriod = 50 * time.Millisecond

// watchFiles calls changed after any of the files changed, appeared or went, until ctx ends. It watches their folders,
// as files are replaced by renaming (and ConfigMap mounts by a link beside them), and asks for the files anew each
// time, as a changed configuration may name others.
func watchFiles(ctx context.Context, files func() []string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	watched := map[string]bool{}
	follow := func() {
		for _, f := range files() {
			if d := filepath.Dir(f); !watched[d] && w.Add(d) == nil {
				watched[d] = true
			}
		}
	}
	follow()
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			return err
		case _, ok := <-w.Events:
			if !ok {
				return nil
			}
			quiet.Reset(quietPeriod)
		case <-quiet.C:
			changed()
			follow()
		}
	}
}
