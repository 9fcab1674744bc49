// Package dispatch calls plugins outside of the engine's loop: it queues calls, runs them on a few workers, and limits the CPU
// time of each plugin and of all together.
package dispatch

import (
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
)

// Options of a Dispatcher.
type Options struct {
	// CPUPercent limits the CPU time of all plugins in any minute, in percent of one core. 0: no limit.
	CPUPercent int
	Log        *slog.Logger

	workers   int                  // 0: see maxWorkers
	threadCPU func() time.Duration // CPU time of the calling thread; nil: the kernel's
}

// maxWorkers bounds the number of calls that run at the same time. A guest cannot be preempted by the Go scheduler, so one of
// GOMAXPROCS is left to the engine.
const maxWorkers = 8

// maxCallWait bounds how long one call is waited for. Usual plugins answer in microseconds; one that takes longer is not waited for any more.
const maxCallWait = 10 * time.Millisecond

// Dispatcher implements engine.Plugins. The methods of that interface are called by one goroutine.
//
// Each plugin has a queue and at most one running call, whatever its settings. Calls of a namespace are made in the order of
// their arrival, and namespaces take turns. Of several plugins, the one with the largest unused share of CPU time comes first.
//
// Plugins of shadows (see policy.ShadowPlugin) have a worker and CPU time of their own, so that they delay no others.
type Dispatcher struct {
	opts    Options
	ready   chan struct{}
	done    chan struct{} // the call that Call waits for has been answered
	stopped chan struct{} // closed when all workers have ended

	mu      sync.Mutex
	workers sync.WaitGroup
	// The workers of plugins, and the one of shadows, which begins with the first call of one.
	enforced, shadows crew
	closing           bool
	queues            []*queue
	shares            shares
	answers           []*policy.Call
	wait              time.Duration    // how long calls of this step may still wait
	timeout           *time.Timer      // of Call
	past              map[string]Stats // of queues that no longer exist, by plugin
}

// New returns a Dispatcher. Stop ends its workers.
func New(o Options) *Dispatcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.workers == 0 {
		o.workers = min(max(1, runtime.GOMAXPROCS(0)-1), maxWorkers)
	}
	if o.threadCPU == nil {
		o.threadCPU = threadCPU
	}
	d := &Dispatcher{
		opts: o, ready: make(chan struct{}, 1), done: make(chan struct{}, 1), stopped: make(chan struct{}),
		shares: newShares(o.CPUPercent, time.Now()), past: map[string]Stats{},
	}
	d.enforced.init(&d.mu)
	d.shadows.init(&d.mu)
	d.shadows.shadow = true
	d.timeout = time.NewTimer(time.Hour)
	d.timeout.Stop()
	for range o.workers {
		d.enforced.begin(d)
	}
	go func() {
		d.workers.Wait()
		close(d.stopped)
	}()
	return d
}

// Limit sets Options.CPUPercent, and divides the CPU time among the named plugins.
func (d *Dispatcher) Limit(cpuPercent int, plugins []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opts.CPUPercent = cpuPercent
	d.shares.limit(cpuPercent)
	d.shares.set(plugins, time.Now())
	d.wakeAll()
	d.queues = slices.DeleteFunc(d.queues, func(q *queue) bool {
		idle := len(q.queued) == 0 && q.running == nil
		if idle {
			d.past[q.plugin] = d.past[q.plugin].add(q, time.Now())
		}
		return idle
	})
}

// Stop makes no more calls. It waits for those that are running, at most for the given time, and reports whether all have ended.
func (d *Dispatcher) Stop(wait time.Duration) bool {
	d.mu.Lock()
	d.closing = true
	d.enforced.timer.Stop()
	d.shadows.timer.Stop()
	d.mu.Unlock()
	d.wakeAll()
	select {
	case <-d.stopped:
		return true
	case <-time.After(wait):
		return false
	}
}

// Ready implements engine.Plugins.
func (d *Dispatcher) Ready() <-chan struct{} { return d.ready }

// StartStep implements engine.Plugins.
func (d *Dispatcher) StartStep(wait time.Duration) []*policy.Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait = wait
	out := d.answers
	d.answers = nil
	return out
}

// Call implements policy.Caller.
func (d *Dispatcher) Call(c *policy.Call) policy.Status {
	d.mu.Lock()
	q := d.queue(c.Name)
	if e := q.queued[c.Key]; e != nil { // keeps its place
		q.replace(e, c)
		d.mu.Unlock()
		return policy.Queued
	}
	if q.running != nil && q.running.call.Key == c.Key {
		d.mu.Unlock()
		return policy.Busy
	}
	if !q.accepts(c) {
		d.mu.Unlock()
		return policy.Refused
	}
	e := q.push(c)
	d.crewOf(q).wake.Signal()
	if !d.mayWait(q) {
		d.mu.Unlock()
		return policy.Queued
	}
	e.awaited = true
	wait := min(d.wait, maxCallWait)
	d.mu.Unlock()
	start := time.Now()
	d.timeout.Reset(wait)
	select {
	case <-d.done:
	case <-d.timeout.C:
	}
	d.timeout.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait -= time.Since(start)
	if e.answered {
		select { // if it was answered after the timeout
		case <-d.done:
		default:
		}
		return policy.Answered
	}
	e.awaited = false
	q.late = true
	return policy.Queued
}

// mayWait reports whether Call waits for the call that it has just queued: not for a plugin that was late the last time, nor while
// such plugins occupy all workers, nor for shadows.
func (d *Dispatcher) mayWait(q *queue) bool {
	if d.wait <= 0 || q.shadow || q.late || d.closing || d.shares.available(q.plugin, time.Now()) > 0 {
		return false
	}
	slow := 0
	for _, other := range d.queues {
		if other.late && other.running != nil {
			slow++
		}
	}
	return slow < d.opts.workers
}

// Room implements policy.Caller.
func (d *Dispatcher) Room(plugin, namespace string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queue(plugin).room(namespace)
}

// ThrottledSince implements policy.Caller.
func (d *Dispatcher) ThrottledSince(plugin string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queue(plugin).throttledSince
}

// queue returns the queue of a plugin.
func (d *Dispatcher) queue(plugin string) *queue {
	for _, q := range d.queues {
		if q.plugin == plugin {
			return q
		}
	}
	q := newQueue(plugin)
	d.queues = append(d.queues, q)
	return q
}
