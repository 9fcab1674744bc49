package kube

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// valueWatchInterval is the minimum time between two starts of a valueWatch: each is a list, by every node.
const valueWatchInterval = 20 * time.Second

// valueWatch watches objects of all namespaces for values that policies see, while a policy sees any: labels of namespaces, or
// load. It belongs to the goroutine of Source.Run.
type valueWatch[T any] struct {
	source    *Source
	ctx       context.Context
	read      model.Kind // of changes that tell which values have been read
	resource  resource
	names     *labelsToRead
	store     *store[T]
	cancel    context.CancelFunc // nil: it does not run
	wg        sync.WaitGroup
	notBefore time.Time // it is not started before
	due       <-chan time.Time
}

func newValueWatch[T any](s *Source, ctx context.Context, read model.Kind, r resource, of func(*labelsToRead) kind[T]) *valueWatch[T] {
	w := &valueWatch[T]{source: s, ctx: ctx, read: read, resource: r, names: newLabelsToRead()}
	w.store = newStore(s, of(w.names))
	w.store.onSynced = func() {
		s.labelsRead(read, w.names.reading)
		s.wake()
	}
	return w
}

// reconcile starts the watch, starts it again for values that it does not read, or stops it.
func (w *valueWatch[T]) reconcile() {
	s := w.source
	wanted := s.wantedLabels(w.read)
	w.names.want(wanted)
	if len(wanted) == 0 {
		if w.cancel != nil {
			w.stop()
			w.store.reset()
			w.names.begin()
			s.labelsRead(w.read, nil)
		}
		return
	}
	select {
	case <-w.names.changed:
	default:
		return
	}
	now := s.opt.Now()
	if wait := w.notBefore.Sub(now); wait > 0 {
		w.names.changed <- struct{}{} // still so
		if w.due == nil {
			w.due = s.opt.After(wait)
		}
		return
	}
	w.notBefore = now.Add(valueWatchInterval)
	w.stop()
	w.names.begin()
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(w.ctx)
	runReflector(s, &w.wg, ctx, w.resource, w.store)
}

// resume reconciles when the watch may be started again.
func (w *valueWatch[T]) resume() {
	w.due = nil
	w.reconcile()
}

// stop stops the watch; what was read stays.
func (w *valueWatch[T]) stop() {
	if w.cancel != nil {
		w.cancel()
		w.wg.Wait()
		w.cancel = nil
	}
}
