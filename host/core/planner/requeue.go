package planner

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
)

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
func (p *Planner) setRequeue(name model.Name, s *serviceState, shadow bool, at int64) {
	w := s.wait(shadow)
	if at != w.requeueAt && at != 0 {
		heap.Push(&p.requeues, requeue{at, name, shadow})
	}
	w.requeueAt = at
	if len(p.requeues) > 64+2*len(p.services) { // most entries are invalid
		p.requeues = slices.DeleteFunc(p.requeues, func(r requeue) bool { return !p.valid(r) })
		heap.Init(&p.requeues)
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
func (p *Planner) enqueueExpired(nowMS int64) {
	for len(p.requeues) > 0 && p.requeues[0].at <= nowMS {
		r := heap.Pop(&p.requeues).(requeue)
		if p.valid(r) {
			s := p.services[r.name]
			s.wait(r.shadow).requeueAt = 0
			p.schedule(s, dueFor(r.shadow))
		}
	}
}

// nextRequeue returns the earliest requeue time, zero for none.
func (p *Planner) nextRequeue() time.Time {
	for len(p.requeues) > 0 {
		if r := p.requeues[0]; p.valid(r) {
			return time.UnixMilli(r.at)
		}
		heap.Pop(&p.requeues)
	}
	return time.Time{}
}

func (p *Planner) valid(r requeue) bool {
	s := p.services[r.name]
	return s != nil && s.wait(r.shadow).requeueAt == r.at
}
