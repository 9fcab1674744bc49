package dispatch

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

const (
	// fast is the duration of a call for which Call waits the next time.
	fast = time.Millisecond
	// slow is the duration of a call after which another worker takes the place of its own: its process may be waiting for ever.
	slow = 20 * time.Millisecond
	// credit is for how long a plugin that has made few calls comes before others.
	credit = 5 * slow
	// instantiateInterval separates calls that need a new instance, because the one before has failed.
	instantiateInterval = 100 * time.Millisecond
	// warnInterval is how long a plugin has not been throttled before the next time is logged.
	warnInterval = time.Minute
)

// work makes the calls of a crew until Stop, or until the end of a slow call: then another worker has taken its place. So there
// is at most one more for each plugin.
func (d *Dispatcher) work(c *crew) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := worker{Dispatcher: d, crew: c}
	w.timer = time.AfterFunc(time.Hour, w.look)
	defer w.timer.Stop()
	var calls []*policy.Call
	for replaced := false; !d.closing && !replaced; {
		q := d.pick(c, time.Now())
		if q == nil {
			c.wake.Wait()
			continue
		}
		q.next()
		calls = calls[:0]
		for _, e := range q.running {
			calls = append(calls, e.call)
		}
		d.fill(q)
		w.begin(q)
		d.mu.Unlock()
		cpu := d.do(calls)
		end := time.Now()
		d.mu.Lock()
		w.calls, replaced, q.replaced = nil, q.replaced, false
		q.cpu += cpu
		ended := q.ended(end.Sub(w.start), end)
		for _, e := range slices.Backward(ended) {
			if errors.Is(e.call.Err, policy.ErrUnasked) {
				q.calls.pushFront(e)
			}
		}
		for _, e := range ended {
			if e.call.Err == nil && q.calls.index[e.key] == e {
				continue // it has been put back
			}
			cpu += perCall + time.Duration(e.size())*perEndpoint
			if needsInstance(e.call.Err) {
				q.notBefore = end.Add(instantiateInterval)
			}
			d.answer(q, e)
		}
		d.shares.charge(q.plugin, cpu, end)
		clear(calls)
	}
	c.wake.Signal() // the queue may have more calls
}

// do makes calls of a plugin and returns the CPU time that they have used.
func (d *Dispatcher) do(calls []*policy.Call) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	plugin := calls[0].Plugin
	before := d.opts.threadCPU() + processCPU(plugin)
	policy.DoAll(calls)
	return d.opts.threadCPU() + processCPU(plugin) - before
}

// processCPU returns the CPU time of a plugin's process. Plugins with the same module share one.
func processCPU(p policy.Plugin) time.Duration {
	if p, ok := p.(interface{ ProcessCPU() time.Duration }); ok {
		return p.ProcessCPU()
	}
	return 0
}

func threadCPU() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // cannot fail
	return time.Duration(t.Nano())
}

// needsInstance reports whether the next call has to instantiate the plugin.
func needsInstance(err error) bool {
	var e *wasm.DecideError
	return errors.As(err, &e) && !e.Suspended
}

// answer keeps a call that has been made for Call.
func (d *Dispatcher) answer(q *queue, e *entry) {
	d.answers = append(d.answers, e.call)
	if !e.awaited {
		d.notify()
		return
	}
	q.awaited--
	d.answered++
	if d.awaited--; d.awaited == 0 {
		d.done <- struct{}{}
	}
}

// notify makes Ready receive a value.
func (d *Dispatcher) notify() {
	select {
	case d.ready <- struct{}{}:
	default:
	}
}

// pick returns the queue with the next call for a crew, nil if there is none at this time.
func (d *Dispatcher) pick(c *crew, now time.Time) *queue {
	var best *queue
	wait := time.Duration(0)
	for _, q := range d.queues {
		if q.shadow != c.shadow || !q.ready() || q.busy() {
			continue
		}
		delay := d.shares.available(q.plugin, now)
		d.setThrottled(q, delay > 0, now)
		if delay = max(delay, q.notBefore.Sub(now)); delay > 0 {
			if wait == 0 || delay < wait {
				wait = delay
			}
			continue
		}
		if q.turn = max(q.turn, c.turn-credit); best == nil || q.turn < best.turn || q.turn == best.turn && q.lastRun.Before(best.lastRun) {
			best = q
		}
	}
	if best != nil {
		c.turn = best.turn
	}
	if wait > 0 {
		c.timer.Reset(wait)
	}
	return best
}

// setThrottled records whether the calls of a queue wait for CPU time.
func (d *Dispatcher) setThrottled(q *queue, throttled bool, now time.Time) {
	switch {
	case throttled && q.throttledSince.IsZero():
		if q.warned.IsZero() || now.Sub(q.warned) > warnInterval {
			why := "plugin has used up its share of CPU time: its calls wait, and the last good decisions stay in force"
			if q.shadow {
				why = "shadows have used up the CPU time that other plugins leave: their calls wait, which has no effect on what is enforced"
			}
			d.opts.Log.Warn(why, "plugin", q.plugin, "cpu_percent", d.opts.CPUPercent, "queued", q.queued())
		}
		q.throttledSince, q.warned = now, now
	case !throttled && !q.throttledSince.IsZero():
		q.throttled += now.Sub(q.throttledSince)
		q.throttledSince, q.warned = time.Time{}, now
	}
}
