package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quietPeriod is how long files must be unchanged before they are read, because writers and editors touch a file several
// times.
const quietPeriod = 50 * time.Millisecond

// watchFiles calls onChange at once, and after any of the files has changed, appeared or disappeared, until ctx ends. It
// watches their directories, because files are replaced by renaming, and ConfigMap volumes by swapping a symbolic link. A
// changed configuration may name other files, so files is called again after each change.
func watchFiles(ctx context.Context, files func() []string, onChange func()) error {
	w, err := fsnotify.NewWatcher()
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
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			quiet.Reset(quietPeriod) // events were lost: any file may have changed
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			if isRelevant(e.Name, files()) {
				quiet.Reset(quietPeriod)
			}
		case <-quiet.C:
			onChange()
			watchDirs()
		}
	}
}

// isRelevant reports whether an event in a watched directory concerns one of the files, or the symbolic link of a
// ConfigMap volume. Other files are ignored: a log file in the same directory would cause a reload for each log line.
func isRelevant(path string, files []string) bool {
	base := filepath.Base(path)
	return strings.HasPrefix(base, "..") || slices.ContainsFunc(files, func(f string) bool { return filepath.Base(f) == base })
}
