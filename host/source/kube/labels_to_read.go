package kube

import (
	"slices"
	"sync"
)

// labelsToRead is which labels a reader of objects reads, and which others it should.
type labelsToRead struct {
	changed chan struct{} // signals that some are wanted that are not read
	reading []string      // sorted; only the reader uses it

	mu     sync.Mutex
	begun  []string // that the reader reads
	wanted []string
}

func newLabelsToRead() *labelsToRead { return &labelsToRead{changed: make(chan struct{}, 1)} }

// want sets the labels that are wanted.
func (l *labelsToRead) want(labels []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Equal(l.wanted, labels) {
		return
	}
	l.wanted = labels
	if !slices.ContainsFunc(labels, func(name string) bool { _, found := slices.BinarySearch(l.begun, name); return !found }) {
		return
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// begin returns the labels that the reader reads from now on.
func (l *labelsToRead) begin() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun, l.reading = l.wanted, l.wanted
	select {
	case <-l.changed:
	default:
	}
	return l.begun
}
