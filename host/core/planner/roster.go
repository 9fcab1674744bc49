package planner

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
)

// roster is the Services, and which of them are planned when.
//
// A Service that is planned is in services, one that has to be and is not is in newcomers. A Service whose input has changed
// since its last round has a place in queue, an unfinished round with again, or a time in requeues.
type roster struct {
	services  map[model.Name]*serviceState
	newcomers map[model.Name]*serviceState // those that are not in services, and have to be planned
	queue     queue.Queue
	requeues  requeueHeap
}

// stateOf returns the state of a Service that has a place in the queue.
func (l *roster) stateOf(name model.Name) *serviceState {
	if s := l.services[name]; s != nil {
		return s
	}
	return l.newcomers[name]
}

// newcomer returns the state of a Service that is not in services.
func (l *roster) newcomer(name model.Name) *serviceState {
	s := l.newcomers[name]
	if s == nil {
		s = &serviceState{}
		l.queue.Enter(&s.place, name)
		l.addNewcomer(s)
	}
	return s
}

func (l *roster) addNewcomer(s *serviceState) {
	if l.newcomers == nil {
		l.newcomers = map[model.Name]*serviceState{}
	}
	l.newcomers[s.place.Name] = s
}

func (l *roster) deleteNewcomer(name model.Name) {
	if delete(l.newcomers, name); len(l.newcomers) == 0 {
		l.newcomers = nil // clear would cost as much as the map's largest size ever
	}
}

// schedule gives a Service a place in the queue for a reason; after an unfinished round of it another one follows.
func (l *roster) schedule(s *serviceState, of queue.Class) {
	if s.round != nil {
		s.round.again = true
		return
	}
	l.queue.Push(&s.place, of)
}

// requeue is a time, in Unix milliseconds, at which a Service has to be planned again. It is valid only while it is equal to
// chainWait.requeueAt: entries are not removed from the heap when a Service gets another time.
type requeue struct {
	at     int64
	name   model.Name
	shadow bool // because of the shadow of its policy
}

// requeueHeap implements heap.Interface, ordered by time, then name.
type requeueHeap []requeue

func (h requeueHeap) Len() int { return len(h) }

func (h requeueHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), h[i].name.Compare(h[j].name)) < 0
}

func (h requeueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *requeueHeap) Push(x any) { *h = append(*h, x.(requeue)) }

// Pop implements heap.Interface.
func (h *requeueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// setRequeue sets when a Service is planned again because of its policy or the shadow of it, 0: only on a change.
func (l *roster) setRequeue(name model.Name, s *serviceState, shadow bool, at int64) {
	w := s.wait(shadow)
	if at != w.requeueAt && at != 0 {
		heap.Push(&l.requeues, requeue{at, name, shadow})
	}
	w.requeueAt = at
	if len(l.requeues) > 64+2*len(l.services) { // most entries are invalid
		l.requeues = slices.DeleteFunc(l.requeues, func(r requeue) bool { return !l.valid(r) })
		heap.Init(&l.requeues)
	}
}

// dueFor returns why a Service is planned because of the chain of its policy, or of its shadow.
func dueFor(shadow bool) queue.Class {
	if shadow {
		return queue.ShadowDue
	}
	return queue.Due
}

// enqueueExpired schedules the Services whose requeue time has passed.
func (l *roster) enqueueExpired(nowMS int64) {
	for len(l.requeues) > 0 && l.requeues[0].at <= nowMS {
		r := heap.Pop(&l.requeues).(requeue)
		if l.valid(r) {
			s := l.services[r.name]
			s.wait(r.shadow).requeueAt = 0
			l.schedule(s, dueFor(r.shadow))
		}
	}
}

// nextRequeue returns the earliest requeue time, zero for none.
func (l *roster) nextRequeue() time.Time {
	for len(l.requeues) > 0 {
		if r := l.requeues[0]; l.valid(r) {
			return time.UnixMilli(r.at)
		}
		heap.Pop(&l.requeues)
	}
	return time.Time{}
}

func (l *roster) valid(r requeue) bool {
	s := l.services[r.name]
	return s != nil && s.wait(r.shadow).requeueAt == r.at
}
