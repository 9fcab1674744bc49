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

// quietPeriod is how long files must be quiet before they are read: writers and editors touch a file several times.
const quietPeriod = 50 * time.Millisecond

// onFileChange calls changed after any of the files changed, appeared or went, until ctx ends. It watches their folders,
// as files are replaced by renaming (and ConfigMap mounts by a link beside them), and asks for the files anew each
// time, as a changed configuration may name others.
func onFileChange(ctx context.Context, files func() []string, changed func()) error {
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
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			quiet.Reset(quietPeriod) // events were lost: any file may have changed
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			if concerns(e.Name, files()) {
				quiet.Reset(quietPeriod)
			}
		case <-quiet.C:
			changed()
			follow()
		}
	}
}

// concerns tells whether an event in a watched folder is about one of the files, or about the link that a mounted
// ConfigMap is swapped by. Other files in the same folder are nobody's business: a log among them would wake us for
// each of our own lines.
func concerns(path string, files []string) bool {
	base := filepath.Base(path)
	return strings.HasPrefix(base, "..") || slices.ContainsFunc(files, func(f string) bool { return filepath.Base(f) == base })
}
