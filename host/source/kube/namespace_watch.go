package kube

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// namespaceWatchInterval is the minimum time between two starts of the watch of namespaces: each is a list, by every node.
const namespaceWatchInterval = 20 * time.Second

// namespaceWatch watches the labels of namespaces that policies see, while a policy sees any. It belongs to the goroutine of
// Source.Run.
type namespaceWatch struct {
	source    *Source
	ctx       context.Context
	labels    *labelsToRead
	store     *store[model.Namespace]
	cancel    context.CancelFunc // nil: it does not run
	wg        sync.WaitGroup
	notBefore time.Time // it is not started before
	due       <-chan time.Time
}

func newNamespaceWatch(s *Source, ctx context.Context) *namespaceWatch {
	w := &namespaceWatch{source: s, ctx: ctx, labels: newLabelsToRead()}
	w.store = newStore(s, namespaceKind(w.labels))
	w.store.onSynced = func() {
		s.labelsRead(model.NamespaceLabelsKind, w.labels.reading)
		s.wake()
	}
	return w
}

// reconcile starts the watch, starts it again for labels that it does not read, or stops it.
func (w *namespaceWatch) reconcile() {
	s := w.source
	wanted := s.wantedLabels(model.NamespaceLabelsKind)
	w.labels.want(wanted)
	if len(wanted) == 0 {
		if w.cancel != nil {
			w.stop()
			w.store.reset()
			w.labels.begin()
			s.labelsRead(model.NamespaceLabelsKind, nil)
		}
		return
	}
	select {
	case <-w.labels.changed:
	default:
		return
	}
	now := s.opt.Now()
	if wait := w.notBefore.Sub(now); wait > 0 {
		w.labels.changed <- struct{}{} // still so
		if w.due == nil {
			w.due = s.opt.After(wait)
		}
		return
	}
	w.notBefore = now.Add(namespaceWatchInterval)
	w.stop()
	w.labels.begin()
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(w.ctx)
	runReflector(s, &w.wg, ctx, s.opt.Client.namespaces(), w.store)
}

// resume reconciles when the watch may be started again.
func (w *namespaceWatch) resume() {
	w.due = nil
	w.reconcile()
}

// stop stops the watch; what was read stays.
func (w *namespaceWatch) stop() {
	if w.cancel != nil {
		w.cancel()
		w.wg.Wait()
		w.cancel = nil
	}
}
