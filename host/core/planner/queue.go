package planner

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// class is a reason to plan a Service, the best one first.
type class uint8

const (
	changed   class = iota // it has changed
	due                    // its time has come, a plugin has answered, its guard has changed, or its round goes on
	swept                  // what Services share has changed
	shadowDue              // as due, for the shadow of its policy only
	classes
	none = classes
)

// queue contains all Services: each has one place, for the best of the reasons to plan it, or for none. Of each class, namespaces take
// turns, so that the Services of one, however many, do not delay those of another; within a namespace, the oldest comes first.
//
// A change of what Services share gives all of them a reason. Beginning such a sweep costs the same for any number of Services.
type queue struct {
	namespaces map[string]*namespace
	turns      [classes][]*namespace // with places of the class, the next one first; some may have lost them
	fresh      []*namespace          // instead of in turns[changed], those that have had no turn: they get every other one
	freshNext  bool
	rested     []*namespace // those that are not in turns[swept]
	n          [classes]int // places by reason
	settled    int          // places in the lists swept and shadowDue of namespaces
	sweep      int          // number of the last sweep
	all        int          // number of the last sweep that concerns all Services
	policies   int          // number of the last sweep that concerns those with a policy
}

// place is the place of a Service.
type place struct {
	state      *serviceState
	name       model.Name
	in         *namespace
	list       class // of in; none: it has been taken. The list swept is that of Services without a reason too
	sweep      int   // number of the last sweep when its last round began
	prev, next *place
}

// namespace is a namespace with Services.
type namespace struct {
	// lists are its places. In those of swept and shadowDue, the ones that the last sweep has not reached come first.
	lists  [classes]placeList
	turn   [classes]bool // it is in queue.turns, except for swept
	rested int           // number of the last sweep when nothing was left to sweep: it is in queue.rested unless another one has begun
	places int           // with those that have been taken
}

// placeList is a list of places.
type placeList struct{ first, last *place }

// add adds a place at the end, or in front.
func (l *placeList) add(p *place, front bool) {
	switch {
	case l.first == nil:
		l.first, l.last = p, p
	case front:
		p.next, l.first.prev = l.first, p
		l.first = p
	default:
		p.prev, l.last.next = l.last, p
		l.last = p
	}
}

func (l *placeList) remove(p *place) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.prev, p.next = nil, nil
}

// enter makes the place of a new Service, as if it had been taken.
func (q *queue) enter(s *serviceState, name model.Name) {
	ns := q.namespaces[name.Namespace]
	if ns == nil {
		if len(q.rested) > 64+2*len(q.namespaces) {
			q.rested = slices.DeleteFunc(q.rested, func(ns *namespace) bool { return ns.places == 0 })
		}
		if q.namespaces == nil {
			q.namespaces = map[string]*namespace{}
		}
		ns = &namespace{rested: q.sweep}
		q.namespaces[name.Namespace] = ns
		q.rested = append(q.rested, ns)
	}
	ns.places++
	s.place = place{state: s, name: name, in: ns, list: none, sweep: q.sweep}
}

// drop ends the place of a Service that does not exist any more, after it was taken.
func (q *queue) drop(p *place) {
	if p.in.places--; p.in.places == 0 {
		delete(q.namespaces, p.name.Namespace)
	}
}

// begin begins a sweep of all Services, or of those with a policy.
func (q *queue) begin(all bool) {
	q.sweep++
	if all {
		q.all = q.sweep
	} else {
		q.policies = q.sweep
	}
	q.turns[swept] = append(q.turns[swept], q.rested...)
	q.rested = nil
	q.n[swept], q.n[shadowDue] = q.settled, 0
}

// reason returns the best reason to plan the Service of a place.
func (q *queue) reason(p *place) class {
	switch {
	case p.list < swept || p.list == none:
		return p.list
	case p.sweep < q.sweep:
		return swept
	case p.list == shadowDue:
		return shadowDue
	}
	return none
}

// push gives a Service a place for a reason, unless it has one for a better reason.
func (q *queue) push(p *place, c class) {
	if q.reason(p) <= c {
		return
	}
	if p.list != none {
		q.remove(p)
	}
	q.insert(p, c, false)
}

// settle gives a Service that was taken and planned a place.
func (q *queue) settle(p *place) {
	if p.list == none {
		q.insert(p, swept, p.sweep < q.sweep)
	}
}

func (q *queue) insert(p *place, list class, front bool) {
	ns := p.in
	p.list = list
	ns.lists[list].add(p, front)
	if list >= swept {
		q.settled++
	}
	switch c := q.reason(p); {
	case c == none:
		return
	case c == swept && ns.rested == q.sweep:
		ns.rested = -1
		q.rested = slices.DeleteFunc(q.rested, func(other *namespace) bool { return other == ns }) // seldom: a round took longer than the sweep
		q.turns[swept] = append(q.turns[swept], ns)
		q.n[c]++
	case c != swept && !ns.turn[c]:
		ns.turn[c] = true
		if c == changed {
			q.fresh = append(q.fresh, ns)
		} else {
			q.turns[c] = append(q.turns[c], ns)
		}
		q.n[c]++
	default:
		q.n[c]++
	}
}

func (q *queue) remove(p *place) {
	if c := q.reason(p); c != none {
		q.n[c]--
	}
	if p.list >= swept {
		q.settled--
	}
	p.in.lists[p.list].remove(p)
	p.list = none
}

// first returns the next place of a namespace with a reason; nil: there is none.
func (q *queue) first(ns *namespace, c class) *place {
	p := ns.lists[c].first
	if c == swept && (p == nil || p.sweep == q.sweep) {
		p = ns.lists[shadowDue].first
	}
	if p != nil && q.reason(p) == c {
		return p
	}
	return nil
}

// take takes the place of the next Service of a class; nil: there is none. settle, push or drop follow. That of shadowDue may be taken only
// when none is swept.
func (q *queue) take(c class) *place {
	for {
		from := &q.turns[c]
		if c == changed {
			if len(q.fresh) > 0 && (q.freshNext || len(*from) == 0) {
				from = &q.fresh
			}
			q.freshNext = from != &q.fresh
		}
		if len(*from) == 0 {
			return nil
		}
		ns := (*from)[0]
		*from = (*from)[1:]
		p := q.first(ns, c)
		if p != nil {
			q.remove(p)
		}
		switch more := q.first(ns, c) != nil; {
		case more:
			q.turns[c] = append(q.turns[c], ns)
		case c != swept:
			ns.turn[c] = false
		case ns.places > 0:
			ns.rested = q.sweep
			q.rested = append(q.rested, ns)
		}
		if p != nil {
			return p
		}
	}
}

// len returns the number of Services that wait.
func (q *queue) len() (n int) {
	for _, of := range q.n {
		n += of
	}
	return n
}

// concerns reports whether the sweeps since the last round of a Service began concern it.
func (q *queue) concerns(s *serviceState) bool {
	return s.place.sweep < q.all || s.place.sweep < q.policies && s.decisions != nil
}
