package planner

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// fairQueue is a queue of Services in which namespaces take turns, so that the changes of one namespace, however many, do not
// delay those of another. Within a namespace the oldest comes first.
type fairQueue struct {
	turns   []string                // namespaces with Services, the next one first
	waiting map[string][]model.Name // by namespace
	queued  map[model.Name]bool
	peak    int // largest size since the maps were made
}

// maxReused is up to which size emptied maps are reused: they keep their largest size ever.
const maxReused = 64

func newFairQueue() fairQueue {
	return fairQueue{waiting: map[string][]model.Name{}, queued: map[model.Name]bool{}}
}

func (q *fairQueue) len() int { return len(q.queued) }

func (q *fairQueue) has(name model.Name) bool { return q.queued[name] }

// push adds a Service, unless it is queued.
func (q *fairQueue) push(name model.Name) {
	if q.queued[name] {
		return
	}
	q.queued[name] = true
	q.peak = max(q.peak, len(q.queued))
	list := q.waiting[name.Namespace]
	if len(list) == 0 {
		q.turns = append(q.turns, name.Namespace)
	}
	q.waiting[name.Namespace] = append(list, name)
}

// pop removes the next Service. The queue must not be empty.
func (q *fairQueue) pop() model.Name { return q.popOf(0) }

// few returns the turn of the namespace that came last with at most limit Services, of some namespaces that came last; -1: none.
func (q *fairQueue) few(limit int) int {
	const some = 8
	for i := len(q.turns) - 1; i >= max(0, len(q.turns)-some); i-- {
		if len(q.waiting[q.turns[i]]) <= limit {
			return i
		}
	}
	return -1
}

// popOf removes the next Service of the namespace with a turn.
func (q *fairQueue) popOf(turn int) model.Name {
	ns := q.turns[turn]
	if turn == 0 {
		q.turns = q.turns[1:]
	} else {
		q.turns = slices.Delete(q.turns, turn, turn+1)
	}
	list := q.waiting[ns]
	name := list[0]
	if len(list) > 1 {
		q.waiting[ns] = list[1:]
		q.turns = append(q.turns, ns)
	} else {
		delete(q.waiting, ns)
	}
	if delete(q.queued, name); len(q.queued) == 0 && q.peak > maxReused {
		*q = newFairQueue()
	}
	return name
}
