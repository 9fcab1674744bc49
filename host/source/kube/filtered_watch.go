package kube

import (
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// causeDecoding is client-go's status cause for an event that cannot be decoded.
const causeDecoding metav1.CauseType = "ClientWatchDecoding"

// filteredWatch passes on the events that keepEvent accepts. Unlike watch.Filter it also ends when it is stopped while
// no goroutine receives the next event.
type filteredWatch struct {
	upstream watch.Interface
	out      chan watch.Event
	stopped  chan struct{}
	once     sync.Once
}

func newFilteredWatch(upstream watch.Interface, onEnd func()) *filteredWatch {
	s := &filteredWatch{upstream: upstream, out: make(chan watch.Event), stopped: make(chan struct{})}
	go func() {
		defer close(s.out)
		defer onEnd()
		for e := range upstream.ResultChan() {
			if !keepEvent(e) {
				continue
			}
			select {
			case s.out <- e:
			case <-s.stopped:
				return
			}
		}
	}()
	return s
}

// ResultChan implements watch.Interface.
func (s *filteredWatch) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface.
func (s *filteredWatch) Stop() {
	s.once.Do(func() { close(s.stopped) })
	s.upstream.Stop()
}

// keepEvent reports whether to pass an event on. It drops the error that client-go makes of a connection that breaks in
// the middle of an event: the watch then just ends, and resumes where it ended instead of with a new list.
func keepEvent(e watch.Event) bool {
	return e.Type != watch.Error || !apierrors.HasStatusCause(apierrors.FromObject(e.Object), causeDecoding)
}
