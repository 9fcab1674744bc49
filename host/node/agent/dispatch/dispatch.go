// Package dispatch calls plugins outside of the engine's loop: it queues calls, runs them on a few workers, and limits the CPU
// time of each plugin and of all together.
package dispatch

import (
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
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

// maxCallWait bounds how long Call waits without an answer. Usual plugins answer in microseconds; one that takes longer is not
// waited for any more.
const maxCallWait = 10 * time.Millisecond

// Dispatcher implements engine.Plugins. The methods of that interface are called by one goroutine.
//
// Each plugin has a queue and at most one running call, whatever its settings; one that is a policy.Batcher has several of them
// made together. Calls of a namespace are made in the order of their arrival, and namespaces take turns. So do plugins, by the
// time for which their calls keep workers: a process may wait without using CPU time. How much of what is asked is kept, whom it
// delays and what waits for CPU time is known here only: whoever asks is told nothing but answers.
//
// Plugins of shadows (see policy.ShadowPlugin) have a worker and CPU time of their own, so that they delay no others.
type Dispatcher struct {
	opts    Options
	ready   chan struct{}
	done    chan struct{} // the calls that Call waits for have been answered
	stopped chan struct{} // closed when all workers have ended

	mu      sync.Mutex
	workers sync.WaitGroup
	// The workers of plugins, and the one of shadows, which begins with the first call of one.
	enforced, shadows crew
	closing           bool
	queues            []*queue
	shares            shares
	answers           []*policy.Call
	awaited           int              // calls that Call waits for
	answered          int              // of them, since the timeout was set
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
		idle := q.queued() == 0 && !q.busy()
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

// Call implements engine.Plugins. It waits only for plugins that were not late the last time.
func (d *Dispatcher) Call(calls []*policy.Call, wait time.Duration) []*policy.Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range calls {
		d.add(c, wait > 0)
	}
	if d.awaited > 0 {
		d.await(wait)
	}
	out := d.answers
	d.answers = nil
	return out
}

// add adds a call to the queue of its plugin.
func (d *Dispatcher) add(c *policy.Call, await bool) {
	q := d.queue(c.Name)
	if c.Plugin == nil {
		q.withdraw(c.Key)
		d.fill(q)
		return
	}
	ready := q.ready()
	if e := q.add(c); e != nil && await && !e.awaited && d.mayWait(q) {
		e.awaited = true
		q.awaited++
		d.awaited++
	}
	d.fill(q)
	if !ready && q.ready() {
		d.crewOf(q).wake.Signal()
	}
}

// fill moves what waits for room in a queue.
func (d *Dispatcher) fill(q *queue) {
	if again := q.fill(); len(again) > 0 {
		d.answers = append(d.answers, again...)
		d.notify()
	}
}

// await waits for the awaited calls, as long as they are answered soon one after the other.
func (d *Dispatcher) await(wait time.Duration) {
	end := time.Now().Add(wait)
	for left := wait; ; {
		d.answered = 0
		d.timeout.Reset(min(left, maxCallWait))
		d.mu.Unlock()
		select {
		case <-d.done:
		case <-d.timeout.C:
		}
		d.timeout.Stop()
		d.mu.Lock()
		if d.awaited == 0 {
			select { // if they were answered after the timeout
			case <-d.done:
			default:
			}
			return
		}
		if left = time.Until(end); left <= 0 || d.answered == 0 {
			break
		}
	}
	d.awaited = 0
	for _, q := range d.queues {
		if q.awaited > 0 {
			q.awaited = 0
			q.late = q.late || q.busy()
			for _, e := range q.calls.index {
				e.awaited = false
			}
			for _, e := range q.running {
				e.awaited = false
			}
		}
	}
}

// mayWait reports whether Call waits for a call: not for a plugin that was late the last time, nor while
// such plugins occupy all workers, nor for shadows.
func (d *Dispatcher) mayWait(q *queue) bool {
	if q.shadow || q.late || d.closing || d.shares.available(q.plugin, time.Now()) > 0 {
		return false
	}
	slow := 0
	for _, other := range d.queues {
		if other.late && other.busy() && !other.replaced {
			slow++
		}
	}
	return slow < d.opts.workers
}

// ThrottledSince returns since when the calls of a plugin wait because it has used up its share of CPU time, zero if they do not.
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
