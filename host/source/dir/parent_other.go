//go:build !linux

package dir

import (
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watchParent sends the events of the root's parent directory, until stop is called.
func watchParent(root string) (events <-chan fsnotify.Event, stop func(), err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, err
	}
	if err := w.Add(filepath.Dir(root)); err != nil {
		_ = w.Close()
		return nil, nil, err
	}
	return w.Events, func() { _ = w.Close() }, nil
}
