// Package fswatch watches folders with fsnotify, for readers that do something else meanwhile.
package fswatch

import "github.com/fsnotify/fsnotify"

// Watcher is fsnotify's, whose errors hold nobody up.
type Watcher struct {
	*fsnotify.Watcher
	// Errors takes the place of fsnotify's, which sends some of them with its lock held: Add, Remove, WatchList and Close would
	// wait for ever while nobody reads them. One error waits to be read; others are lost meanwhile, as each says the same:
	// events may be missing.
	Errors <-chan error
}

// New returns a Watcher with a buffer for events, without folders. Close it.
func New(buffer uint) (*Watcher, error) {
	w, err := fsnotify.NewBufferedWatcher(buffer)
	if err != nil {
		return nil, err
	}
	errs := make(chan error, 1)
	go func() {
		for err := range w.Errors {
			select {
			case errs <- err:
			default:
			}
		}
	}()
	return &Watcher{w, errs}, nil
}

// Close ends the watch, and does not wait for it: closing an inotify instance waits for a grace period of the kernel (SRCU),
// seconds on a machine with too much load.
func (w *Watcher) Close() { go func() { _ = w.Watcher.Close() }() }
