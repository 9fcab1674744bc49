package dispatch

import (
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
)

// Limits of the calls that are queued for a plugin. A queued endpoint takes some 200 bytes. A request of any size is
// accepted as long as the limits are not reached without it.
const (
	maxCalls              = 512
	maxEndpoints          = 16384
	maxNamespaceCalls     = maxCalls / 4
	maxNamespaceEndpoints = maxEndpoints / 4
)

// queue contains the calls of a plugin that have not begun.
type queue struct {
	plugin     string
	shadow     bool     // of a shadow
	namespaces []string // that have calls, in turn
	calls      map[string]*namespaceCalls
	queued     map[policy.PoolKey]*entry
	endpoints  int
	running    *entry
	lastRun    time.Time
	notBefore  time.Time // no call before
	late       bool      // Call has waited in vain, and no call has been fast since
	// throttledSince is since when calls wait for CPU time; zero: they do not.
	throttledSince time.Time
	throttled      time.Duration // before throttledSince
	cpu            time.Duration
	warned         time.Time // when throttling was last logged or seen to last
}

type namespaceCalls struct {
	entries   []*entry
	endpoints int
}

type entry struct {
	call     *policy.Call
	awaited  bool // by Call
	answered bool
}

func newQueue(plugin string) *queue {
	_, shadow := policy.CutShadow(plugin)
	return &queue{plugin: plugin, shadow: shadow, calls: map[string]*namespaceCalls{}, queued: map[policy.PoolKey]*entry{}}
}

// accepts reports whether a call may be queued.
func (q *queue) accepts(c *policy.Call) bool {
	return q.below(c.Key.Port.Service.Namespace, maxCalls, maxNamespaceCalls)
}

// room reports whether several calls of a namespace would be accepted. There is a distance to accepts so that a Service with many
// ports is not planned again for each call.
func (q *queue) room(namespace string) bool {
	return q.below(namespace, maxCalls*3/4, maxNamespaceCalls/2)
}

func (q *queue) below(namespace string, calls, ofNamespace int) bool {
	if len(q.queued) >= calls || q.endpoints >= maxEndpoints {
		return false
	}
	n := q.calls[namespace]
	return n == nil || len(n.entries) < ofNamespace && n.endpoints < maxNamespaceEndpoints
}

func (q *queue) push(c *policy.Call) *entry {
	name := c.Key.Port.Service.Namespace
	n := q.calls[name]
	if n == nil {
		n = &namespaceCalls{}
		q.calls[name] = n
		q.namespaces = append(q.namespaces, name)
	}
	e := &entry{call: c}
	n.entries = append(n.entries, e)
	n.endpoints += len(c.Request.Endpoints)
	q.endpoints += len(c.Request.Endpoints)
	q.queued[c.Key] = e
	return e
}

// replace replaces the call of an entry, which keeps its place.
func (q *queue) replace(e *entry, c *policy.Call) {
	more := len(c.Request.Endpoints) - len(e.call.Request.Endpoints)
	q.endpoints += more
	q.calls[c.Key.Port.Service.Namespace].endpoints += more
	e.call = c
}

// pop removes the next call.
func (q *queue) pop() *entry {
	name := q.namespaces[0]
	n := q.calls[name]
	e := n.entries[0]
	n.entries = n.entries[1:]
	n.endpoints -= len(e.call.Request.Endpoints)
	q.endpoints -= len(e.call.Request.Endpoints)
	delete(q.queued, e.call.Key)
	q.namespaces = q.namespaces[1:]
	if len(n.entries) > 0 {
		q.namespaces = append(q.namespaces, name)
	} else {
		delete(q.calls, name)
	}
	return e
}
