// Package queue decides which Service the planner plans next.
package queue

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Class is a reason to plan a Service, the best one first.
type Class uint8

const (
	Changed   Class = iota // it has changed
	Due                    // its time has come, a plugin has answered, its guard has changed, or its round goes on
	Swept                  // what Services share has changed
	ShadowDue              // as due, for the shadow of its policy only
	classes
	None = classes
)

// Queue contains all Services: each has one place, for the best of the reasons to plan it, or for none. Of each class, namespaces
// take turns, so that the Services of one, however many, do not delay those of another; within a namespace, the oldest comes
// first.
//
// A change of what Services share gives all of them a reason. Beginning such a sweep costs the same for any number of Services.
type Queue struct {
	namespaces map[string]*namespace
	turns      [classes][]*namespace // with places of the class, the next one first; some may have lost them
	fresh      []*namespace          // instead of in turns[Changed], those that have had no turn: they get every other one
	freshNext  bool
	rested     []*namespace // those that are not in turns[Swept]
	n          [classes]int // places by reason
	settled    int          // places in the lists Swept and ShadowDue of namespaces
	sweep      int          // number of the last sweep
	all        int          // number of the last sweep that concerns all Services
	policies   int          // number of the last sweep that concerns those with a policy
}

// Place is the place of a Service.
type Place struct {
	Name       model.Name
	in         *namespace
	list       Class // of in; none: it has been taken. The list Swept is that of Services without a reason too
	sweep      int   // number of the last sweep when its last round began
	prev, next *Place
}

// namespace is a namespace with Services.
type namespace struct {
	// lists are its places. In those of Swept and ShadowDue, the ones that the last sweep has not reached come first.
	lists  [classes]placeList
	turn   [classes]bool // it is in Queue.turns, except for Swept
	rested int           // number of the last sweep when nothing was left to sweep: it is in Queue.rested unless another one has begun
	places int           // with those that have been taken
}

// placeList is a list of places.
type placeList struct{ first, last *Place }

// add adds a place at the end, or in front.
func (l *placeList) add(p *Place, front bool) {
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

func (l *placeList) remove(p *Place) {
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

// Enter makes the place of a new Service, as if it had been taken.
func (q *Queue) Enter(p *Place, name model.Name) {
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
	*p = Place{Name: name, in: ns, list: None, sweep: q.sweep}
}

// Drop ends the place of a Service that does not exist any more, after it was taken.
func (q *Queue) Drop(p *Place) {
	if p.in.places--; p.in.places == 0 {
		delete(q.namespaces, p.Name.Namespace)
	}
}

// Begin begins a sweep of all Services, or of those with a policy.
func (q *Queue) Begin(all bool) {
	q.sweep++
	if all {
		q.all = q.sweep
	} else {
		q.policies = q.sweep
	}
	q.turns[Swept] = append(q.turns[Swept], q.rested...)
	q.rested = nil
	q.n[Swept], q.n[ShadowDue] = q.settled, 0
}

// reason returns the best reason to plan the Service of a place.
func (q *Queue) reason(p *Place) Class {
	switch {
	case p.list < Swept || p.list == None:
		return p.list
	case p.sweep < q.sweep:
		return Swept
	case p.list == ShadowDue:
		return ShadowDue
	}
	return None
}

// Push gives a Service a place for a reason, unless it has one for a better reason.
func (q *Queue) Push(p *Place, c Class) {
	if q.reason(p) <= c {
		return
	}
	if p.list != None {
		q.remove(p)
	}
	q.insert(p, c, false)
}

// Settle gives a Service that was taken and planned a place.
func (q *Queue) Settle(p *Place) {
	if p.list == None {
		q.insert(p, Swept, p.sweep < q.sweep)
	}
}

func (q *Queue) insert(p *Place, list Class, front bool) {
	ns := p.in
	p.list = list
	ns.lists[list].add(p, front)
	if list >= Swept {
		q.settled++
	}
	switch c := q.reason(p); {
	case c == None:
		return
	case c == Swept && ns.rested == q.sweep:
		ns.rested = -1
		q.rested = slices.DeleteFunc(q.rested, func(other *namespace) bool { return other == ns }) // seldom: a round took longer than the sweep
		q.turns[Swept] = append(q.turns[Swept], ns)
		q.n[c]++
	case c != Swept && !ns.turn[c]:
		ns.turn[c] = true
		if c == Changed {
			q.fresh = append(q.fresh, ns)
		} else {
			q.turns[c] = append(q.turns[c], ns)
		}
		q.n[c]++
	default:
		q.n[c]++
	}
}

func (q *Queue) remove(p *Place) {
	if c := q.reason(p); c != None {
		q.n[c]--
	}
	if p.list >= Swept {
		q.settled--
	}
	p.in.lists[p.list].remove(p)
	p.list = None
}

// first returns the next place of a namespace with a reason; nil: there is none.
func (q *Queue) first(ns *namespace, c Class) *Place {
	p := ns.lists[c].first
	if c == Swept && (p == nil || p.sweep == q.sweep) {
		p = ns.lists[ShadowDue].first
	}
	if p != nil && q.reason(p) == c {
		return p
	}
	return nil
}

// Take takes the place of the next Service of a class; nil: there is none. Settle, Push or Drop follow. That of ShadowDue may be
// taken only when none is Swept.
func (q *Queue) Take(c Class) *Place {
	for {
		from := &q.turns[c]
		if c == Changed {
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
		case c != Swept:
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

// Len returns the number of Services that wait.
func (q *Queue) Len() (n int) {
	for _, of := range q.n {
		n += of
	}
	return n
}

// BeginRound records that a round of a Service that was taken begins: what sweeps have changed so far is taken into account.
func (q *Queue) BeginRound(p *Place) { p.sweep = q.sweep }

// Concerns reports whether the sweeps since the last round of a Service began concern it.
func (q *Queue) Concerns(p *Place, hasPolicy bool) bool {
	return p.sweep < q.all || p.sweep < q.policies && hasPolicy
}

// Waiting returns the number of Services whose best reason is a class.
func (q *Queue) Waiting(c Class) int { return q.n[c] }

// HasFresh reports whether Services have changed whose namespace has had no turn.
func (q *Queue) HasFresh() bool { return len(q.fresh) > 0 }

// PreferFresh makes the next Service of Changed one of such a namespace.
func (q *Queue) PreferFresh() { q.freshNext = true }
