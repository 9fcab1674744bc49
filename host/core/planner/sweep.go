package planner

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// sweep plans Services again after a change of what they share: each Plan continues where the last one ended. Beginning it costs the
// same for any number of Services.
type sweep struct {
	changes     int           // so far
	all         int           // number of the last change that concerns all Services
	policies    int           // number of the last change that concerns those with a policy
	left        int           // Services that have not been visited since the last change
	first, next *serviceState // of a ring of all Services, oldest first; nil if there are none
}

// visit is what a sweep knows of a Service.
type visit struct {
	name       model.Name
	changes    int // those before the last visit
	prev, next *serviceState
}

// begin schedules all Services, or those with a policy.
func (w *sweep) begin(services int, all bool) {
	w.changes++
	if w.left == 0 {
		w.next = w.first
	}
	w.left = services
	if all {
		w.all = w.changes
	} else {
		w.policies = w.changes
	}
}

// add adds a Service, which is about to be planned.
func (w *sweep) add(name model.Name, s *serviceState) {
	s.visit = visit{name: name, changes: w.changes, prev: s, next: s}
	if w.first == nil {
		w.first, w.next = s, s
		return
	}
	s.visit.prev, s.visit.next = w.first.visit.prev, w.first
	s.visit.prev.visit.next, w.first.visit.prev = s, s
}

func (w *sweep) remove(s *serviceState) {
	w.visited(s)
	v := &s.visit
	v.prev.visit.next, v.next.visit.prev = v.next, v.prev
	if v.next == s {
		w.first, w.next = nil, nil
		return
	}
	if w.first == s {
		w.first = v.next
	}
	if w.next == s {
		w.next = v.next
	}
}

// visited records that a Service needs no visit any more, because a round of it begins.
func (w *sweep) visited(s *serviceState) {
	if s.visit.changes < w.changes {
		s.visit.changes = w.changes
		w.left--
	}
}

// concerns reports whether the changes since the last visit of a Service concern it.
func (w *sweep) concerns(s *serviceState) bool {
	return s.visit.changes < w.all || s.visit.changes < w.policies && (s.decisions != nil || s.round != nil)
}

// planSweep continues the sweep until the budget is spent.
func (p *Planner) planSweep(limit *budget, now time.Time, result *Result) {
	w := &p.sweep
	for w.left > 0 && !p.stops(limit) {
		s := w.next
		w.next = s.visit.next
		limit.spend(lookCost)
		if w.concerns(s) && !p.planAgain(s.visit.name) {
			p.planTurn(s.visit.name, false, limit, now, result)
		} else {
			w.visited(s)
		}
	}
}
