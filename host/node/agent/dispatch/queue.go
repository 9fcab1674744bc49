package dispatch

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Limits of the calls that are kept for a plugin. An endpoint of a request takes some 200 bytes. A request of any size is
// kept as long as the limits are not reached without it.
const (
	maxCalls              = 512
	maxEndpoints          = 16384
	maxNamespaceCalls     = maxCalls / 4
	maxNamespaceEndpoints = maxEndpoints / 4
)

// maxTogether bounds the calls that are made together. They take a millisecond, as long as one call that Call waits for: their
// answers come all at once.
const maxTogether = 64

// queue contains what a plugin is asked and has not begun with: a pool has one entry, in calls or in places. The calls that would
// exceed the limits are not kept: their pools have places, and ask again when it is their turn, once there is some distance to
// the limits.
type queue struct {
	plugin    string
	shadow    bool // of a shadow
	calls     line // entries without a call are for pools that have been told to ask again
	places    line // entries with a call are those that cannot be asked for again
	running   []*entry
	together  int // how many calls of a policy.Batcher are made together the next time
	lastRun   time.Time
	turn      time.Duration // for which it has kept workers; the queue with the smallest comes next, and none is more than credit behind the last one
	replaced  bool          // another worker has taken the place of the one that makes the running calls
	notBefore time.Time     // no call before
	late      bool          // Call has waited in vain, and no call has been fast since
	awaited   int           // entries that Call waits for
	// throttledSince is since when calls wait for CPU time; zero: they do not.
	throttledSince time.Time
	throttled      time.Duration // before throttledSince
	cpu            time.Duration
	warned         time.Time // when throttling was last logged or seen to last
}

// line is a list of entries in which namespaces take turns. Within a namespace, the oldest comes first.
type line struct {
	turns     []string // namespaces with entries, the next one first
	of        map[string]*namespaceLine
	index     map[policy.PoolKey]*entry
	endpoints int // in the requests of all
	idle      int // entries without a call
}

type namespaceLine struct {
	entries   []*entry
	endpoints int
}

type entry struct {
	key     policy.PoolKey
	call    *policy.Call // nil: it is not kept
	awaited bool         // by Call
}

func newQueue(plugin string) *queue {
	_, shadow := policy.CutShadow(plugin)
	return &queue{plugin: plugin, shadow: shadow, together: 1, calls: newLine(), places: newLine()}
}

func newLine() line { return line{of: map[string]*namespaceLine{}, index: map[policy.PoolKey]*entry{}} }

func (l *line) len() int { return len(l.index) }

func namespaceOf(k *policy.PoolKey) string { return k.Port.Service.Namespace }

// size returns the number of endpoints in the request of an entry.
func (e *entry) size() int {
	if e.call == nil {
		return 0
	}
	return len(e.call.Request.Endpoints)
}

func (l *line) push(e *entry) {
	name := namespaceOf(&e.key)
	n := l.of[name]
	if n == nil {
		n = &namespaceLine{}
		l.of[name] = n
		l.turns = append(l.turns, name)
	}
	n.entries = append(n.entries, e)
	l.index[e.key] = e
	l.count(n, e, 1)
}

// pushFront adds an entry that comes next in its namespace.
func (l *line) pushFront(e *entry) {
	e.call.Err = nil
	l.push(e)
	n := l.of[namespaceOf(&e.key)]
	copy(n.entries[1:], n.entries)
	n.entries[0] = e
}

// set sets the call of an entry, which keeps its place.
func (l *line) set(e *entry, c *policy.Call) {
	n := l.of[namespaceOf(&e.key)]
	l.count(n, e, -1)
	e.call = c
	l.count(n, e, 1)
}

func (l *line) count(n *namespaceLine, e *entry, sign int) {
	n.endpoints += sign * e.size()
	l.endpoints += sign * e.size()
	if e.call == nil {
		l.idle += sign
	}
}

// remove removes entry number i of the namespace with a turn, which then is the last one.
func (l *line) remove(turn, i int) *entry {
	name := l.turns[turn]
	n := l.of[name]
	e := n.entries[i]
	if i == 0 {
		n.entries = n.entries[1:]
	} else {
		n.entries = slices.Delete(n.entries, i, i+1)
	}
	l.count(n, e, -1)
	delete(l.index, e.key)
	if turn == 0 {
		l.turns = l.turns[1:]
	} else {
		l.turns = slices.Delete(l.turns, turn, turn+1)
	}
	if len(n.entries) > 0 {
		l.turns = append(l.turns, name)
	} else {
		delete(l.of, name)
	}
	return e
}

// pop removes the next entry for which ok returns true; nil: there is none.
func (l *line) pop(ok func(*entry) bool) *entry {
	for turn, name := range l.turns {
		if i := slices.IndexFunc(l.of[name].entries, ok); i >= 0 {
			return l.remove(turn, i)
		}
	}
	return nil
}

// drop removes an entry.
func (l *line) drop(e *entry) {
	turn := slices.Index(l.turns, namespaceOf(&e.key))
	l.remove(turn, slices.Index(l.of[l.turns[turn]].entries, e))
}

// add adds a call, and returns its entry; nil: the call is not kept.
func (q *queue) add(c *policy.Call) *entry {
	if e := q.calls.index[c.Key]; e != nil {
		q.calls.set(e, c)
		return e
	}
	if slices.ContainsFunc(q.running, func(e *entry) bool { return e.key == c.Key }) {
		return nil // its pool asks again when it has the answer
	}
	if e := q.places.index[c.Key]; e != nil {
		if e.call != nil || !c.Repeatable() {
			q.places.set(e, c)
		}
		return nil
	}
	name := namespaceOf(&c.Key)
	e := &entry{key: c.Key, call: c}
	if q.places.len() == 0 && q.below(name, maxCalls, maxNamespaceCalls) || q.places.of[name] == nil && q.room(name) {
		q.calls.push(e)
		return e
	}
	if c.Repeatable() {
		e.call = nil
	}
	q.places.push(e)
	return nil
}

// withdraw removes the call of a pool that has not begun.
func (q *queue) withdraw(k policy.PoolKey) {
	if e := q.calls.index[k]; e != nil {
		q.calls.drop(e)
	} else if e := q.places.index[k]; e != nil {
		q.places.drop(e)
	}
}

// fill moves entries from places to calls as far as there is room, and returns answers for those that are to ask again.
func (q *queue) fill() (again []*policy.Call) {
	for len(q.places.turns) > 0 {
		turn := slices.IndexFunc(q.places.turns, q.room)
		if turn < 0 {
			return again
		}
		e := q.places.remove(turn, 0)
		q.calls.push(e)
		if e.call == nil {
			again = append(again, e.key.Again(q.plugin))
		}
	}
	return again
}

// room reports whether several calls of a namespace would be kept.
func (q *queue) room(namespace string) bool {
	return q.below(namespace, maxCalls*3/4, maxNamespaceCalls/2)
}

func (q *queue) below(namespace string, calls, ofNamespace int) bool {
	if q.calls.len() >= calls || q.calls.endpoints >= maxEndpoints {
		return false
	}
	n := q.calls.of[namespace]
	return n == nil || len(n.entries) < ofNamespace && n.endpoints < maxNamespaceEndpoints
}

// ready reports whether there is a call to make.
func (q *queue) ready() bool { return q.calls.len() > q.calls.idle }

// next makes the next call to make the running one, or several of a policy.Batcher.
func (q *queue) next() {
	first := q.calls.pop(func(e *entry) bool { return e.call != nil })
	q.running = append(q.running, first)
	plugin := first.call.Plugin
	if _, ok := plugin.(policy.Batcher); !ok {
		return
	}
	for len(q.running) < q.together {
		e := q.calls.pop(func(e *entry) bool { return e.call != nil && e.call.Plugin == plugin })
		if e == nil {
			return
		}
		q.running = append(q.running, e)
	}
}

// ended records how long the running calls have taken, and returns them.
func (q *queue) ended(took time.Duration, at time.Time) []*entry {
	out := q.running
	switch n := len(out); {
	case took > fast:
		q.together = max(1, n/2)
	case n == q.together && took < fast/2:
		q.together = min(2*n, maxTogether)
	}
	q.running, q.lastRun, q.late = nil, at, q.late && took > fast
	q.turn += min(took, slow)
	return out
}

// busy reports whether a call is running.
func (q *queue) busy() bool { return len(q.running) > 0 }

// queued returns the number of pools that wait.
func (q *queue) queued() int { return q.calls.len() + q.places.len() }
