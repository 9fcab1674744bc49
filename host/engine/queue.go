package engine

import (
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// maxIntake is how many changes of the cluster a step takes, more only for a Service that has more. 5,000 that arrive at once
// would otherwise make a step of 10 to 30 ms.
const maxIntake = 64

// changeQueue buffers changes from the source, which it never blocks. A change replaces an earlier one of the same object, so the
// queue never grows beyond the size of the cluster. Namespaces take turns, so that a change in one does not wait for thousands in
// another. The changes of a Service and of its EndpointSlices that wait together stay together, in their order: without some of
// them, the Service would have no endpoints for a moment.
type changeQueue struct {
	mu         sync.Mutex
	changes    []model.Change    // those that wait, and those taken since the list was made; number 0 is none
	index      map[changeKey]int // of those that wait
	links      []links           // of each change
	namespaces map[string]*namespaceChanges
	turns      []*namespaceChanges // the next one first
	groups     map[model.Name]span // the changes of a Service and its EndpointSlices, also after they are taken
	arrived    bool                // since the last take
	ready      chan struct{}
	observer   Observer
}

type changeKey struct {
	kind model.Kind
	name model.Name
}

func keyOf(c *model.Change) changeKey { return changeKey{c.Kind, c.Name} }

// namespaceChanges are changes of a namespace, oldest first.
type namespaceChanges struct {
	name    string
	arrived span // those that are not in groups yet
	groups  span // first changes of groups: those of a Service and its EndpointSlices, and each other change
}

// span is a list of changes, by their indices; zero: it is empty.
type span struct{ first, last int32 }

// links are the indices of the changes after one in lists, 0 at the end.
type links struct{ inGroup, inNamespace int32 }

func newChangeQueue(o Observer) *changeQueue {
	q := &changeQueue{ready: make(chan struct{}, 1), observer: o}
	q.reset(0)
	return q
}

// reset empties the queue, with room for n changes. clear() would cost as much as the largest size that the maps ever had.
func (q *changeQueue) reset(n int) {
	q.changes, q.links, q.turns = make([]model.Change, 1, n+8), make([]links, 1, n+8), nil
	q.index, q.namespaces, q.groups = make(map[changeKey]int, n), map[string]*namespaceChanges{}, make(map[model.Name]span, n/2)
}

func (q *changeQueue) put(changes []model.Change) {
	if len(changes) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.observer.OnEnqueue(changes, time.Now())
	q.arrived = true
	for i := range changes {
		if at, ok := q.index[keyOf(&changes[i])]; ok {
			q.changes[at] = changes[i]
		} else {
			q.add(&changes[i])
		}
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *changeQueue) add(c *model.Change) {
	at := len(q.changes)
	q.index[keyOf(c)] = at
	q.changes, q.links = append(q.changes, *c), append(q.links, links{})
	ns := q.namespaces[c.Name.Namespace]
	if ns == nil {
		ns = &namespaceChanges{name: c.Name.Namespace}
		q.namespaces[c.Name.Namespace] = ns
		q.turns = append(q.turns, ns)
	}
	q.append(&ns.arrived, int32(at))
}

// append adds a change to a list of a namespace.
func (q *changeQueue) append(l *span, at int32) {
	if l.first == 0 {
		l.first = at
	} else {
		q.links[l.last].inNamespace = at
	}
	l.last, q.links[at].inNamespace = at, 0
}

// take returns the changes that the next step takes, about limit, and how many are left. serviceOf returns the Service of a
// change, zero if it has none. Dividing 5,000 changes takes a millisecond.
func (q *changeQueue) take(limit int, serviceOf func(*model.Change) model.Name) (out []model.Change, left int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.arrived {
		q.arrived = false
		q.observer.OnDequeue()
	}
	switch n := len(q.index); {
	case n == 0:
		return nil, 0
	case n <= limit && n == len(q.changes)-1:
		out = q.changes[1:]
	default:
		q.compact()
		out = make([]model.Change, 0, min(n, limit+limit/8))
		for len(q.index) > 0 && len(out) < limit {
			out = q.pop(out, serviceOf)
		}
		if len(q.index) > 0 {
			return out, len(q.index)
		}
	}
	q.reset(0)
	return out, 0
}

// compact forgets changes that have been taken, if they are most of the list.
func (q *changeQueue) compact() {
	if len(q.changes) < 2*len(q.index)+maxIntake {
		return
	}
	old := q.changes
	q.reset(len(q.index))
	for i := range old {
		if keyOf(&old[i]) != (changeKey{}) {
			q.add(&old[i])
		}
	}
}

// group makes the changes of a namespace that have arrived groups, or parts of those of their Services.
func (q *changeQueue) group(ns *namespaceChanges, serviceOf func(*model.Change) model.Name) {
	for next := ns.arrived.first; next != 0; {
		at := next
		next = q.links[at].inNamespace
		if service := serviceOf(&q.changes[at]); service != (model.Name{}) {
			if g, ok := q.groups[service]; ok && keyOf(&q.changes[g.last]) != (changeKey{}) {
				q.links[g.last].inGroup = at
				q.groups[service] = span{g.first, at}
				continue
			}
			q.groups[service] = span{at, at}
		}
		q.append(&ns.groups, at)
	}
	ns.arrived = span{}
}

// pop removes the next group, and appends it to a list. There must be one.
func (q *changeQueue) pop(out []model.Change, serviceOf func(*model.Change) model.Name) []model.Change {
	ns := q.turns[0]
	q.turns = q.turns[1:]
	q.group(ns, serviceOf)
	at := ns.groups.first
	if ns.groups.first = q.links[at].inNamespace; ns.groups.first != 0 {
		q.turns = append(q.turns, ns)
	} else {
		delete(q.namespaces, ns.name)
	}
	for ; at != 0; at = q.links[at].inGroup {
		out = append(out, q.changes[at])
		delete(q.index, keyOf(&q.changes[at]))
		q.changes[at] = model.Change{}
	}
	return out
}
