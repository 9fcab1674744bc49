package engine

import (
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// changeQueue buffers changes from the source, which it never blocks. A change replaces an earlier one of the same object, so
// the queue never grows beyond the size of the cluster.
type changeQueue struct {
	mu       sync.Mutex
	changes  []model.Change
	index    map[changeKey]int
	ready    chan struct{}
	observer Observer
}

type changeKey struct {
	kind model.Kind
	name model.Name
}

func keyOf(c *model.Change) changeKey { return changeKey{c.Kind, c.Name} }

func newChangeQueue(o Observer) *changeQueue {
	return &changeQueue{index: map[changeKey]int{}, ready: make(chan struct{}, 1), observer: o}
}

func (q *changeQueue) put(changes []model.Change) {
	if len(changes) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.observer.OnEnqueue(changes, time.Now())
	for i := range changes {
		k := keyOf(&changes[i])
		if at, ok := q.index[k]; ok {
			q.changes[at] = changes[i]
			continue
		}
		q.index[k] = len(q.changes)
		q.changes = append(q.changes, changes[i])
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns all changes, and the index of each.
func (q *changeQueue) take() ([]model.Change, map[changeKey]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.changes) == 0 {
		return nil, nil
	}
	q.observer.OnDequeue()
	out, index := q.changes, q.index
	q.changes = nil
	q.index = map[changeKey]int{} // not clear(): its cost follows the largest size that the map ever had
	return out, index
}
