package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/fswatch"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// quietPeriod is how long files must be unchanged before they are read, because writers and editors touch a file several
// times.
const quietPeriod = 50 * time.Millisecond

// Delay before files are read again after a temporary error. No event announces its end. The delay doubles from the minimum to
// the maximum.
const (
	minReadRetry = 100 * time.Millisecond
	maxReadRetry = 30 * time.Second
)

// watchFiles calls onChange at once, and after any of the files has changed, appeared or disappeared, until ctx ends. It watches
// their directories, because files are replaced by renaming, and ConfigMap volumes by swapping a symbolic link. A changed
// configuration may name other files, so files is called again after each change. After a temporary error of onChange it is
// called again, and whenever something is sent on changed. When something is sent on objects, onObjects is called, at most once
// in objectsPace, and then onChange if it returns true.
func watchFiles(ctx context.Context, files func() []string, changed <-chan struct{}, onChange func() error, objects <-chan struct{}, onObjects func() bool) error {
	w, err := fswatch.New(0)
	if err != nil {
		return err
	}
	defer w.Close()
	watched := map[string]bool{}
	watchDirs := func() {
		for _, f := range files() {
			if d := filepath.Dir(f); !watched[d] && w.Add(d) == nil {
				watched[d] = true
			}
		}
	}
	watchDirs()
	read, retry := time.NewTimer(0), minReadRetry
	defer read.Stop()
	var pace <-chan time.Time // nil: objects may come into force
	wanted := objects
	for {
		select {
		case <-wanted:
			if onObjects() {
				read.Reset(0)
			}
			wanted, pace = nil, time.After(objectsPace)
		case <-pace:
			wanted, pace = objects, nil
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			read.Reset(quietPeriod) // events were lost: any file may have changed
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			if isRelevant(e.Name, files()) {
				read.Reset(quietPeriod)
			}
		case <-changed:
			read.Reset(0)
		case <-read.C:
			if isTemporary(onChange()) {
				read.Reset(retry)
				retry = min(2*retry, maxReadRetry)
			} else {
				retry = minReadRetry
			}
			watchDirs()
		}
	}
}

// isTemporary reports whether files may be loaded later without a change: the process or the system had no file descriptor or
// memory, or a plugin took too much CPU time for its start, or its process ended.
func isTemporary(err error) bool { return safefile.IsTemporary(err) || wasm.IsTemporary(err) }

// isRelevant reports whether an event in a watched directory concerns one of the files, or the symbolic link of a
// ConfigMap volume. Other files are ignored: a log file in the same directory would cause a reload for each log line.
func isRelevant(path string, files []string) bool {
	base := filepath.Base(path)
	return strings.HasPrefix(base, "..") || slices.ContainsFunc(files, func(f string) bool { return filepath.Base(f) == base })
}
