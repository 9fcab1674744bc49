package dispatch

import (
	"sync"
	"time"
)

// crew is the workers of the plugins of policies, or of those of shadows.
type crew struct {
	shadow  bool
	workers int           // that have begun
	turn    time.Duration // of the queue that was called last
	wake    sync.Cond
	timer   *time.Timer
}

func (c *crew) init(mu *sync.Mutex) {
	c.wake.L = mu
	c.timer = time.AfterFunc(time.Hour, c.wake.Broadcast)
	c.timer.Stop()
}

// begin starts a worker.
func (c *crew) begin(d *Dispatcher) {
	c.workers++
	d.workers.Go(func() { d.work(c) })
}

// crewOf returns the workers of a queue.
func (d *Dispatcher) crewOf(q *queue) *crew {
	if !q.shadow {
		return &d.enforced
	}
	if d.shadows.workers == 0 && !d.closing {
		d.shadows.begin(d)
	}
	return &d.shadows
}

// wakeAll wakes all workers.
func (d *Dispatcher) wakeAll() {
	d.enforced.wake.Broadcast()
	d.shadows.wake.Broadcast()
}

// worker is what makes calls in turn.
type worker struct {
	*Dispatcher
	crew    *crew
	calls   *queue // that of the running calls
	start   time.Time
	timer   *time.Timer // of look
	looking bool        // the timer runs: starting it for each call would cost much
}

// begin records the begin of calls.
func (w *worker) begin(q *queue) {
	w.calls, w.start = q, time.Now()
	if !w.looking {
		w.looking = true
		w.timer.Reset(slow)
	}
}

// look starts another worker if the running calls are slow.
func (w *worker) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looking = false
	if w.calls == nil || w.closing {
		return
	}
	if left := slow - time.Since(w.start); left > 0 {
		w.looking = true
		w.timer.Reset(left)
		return
	}
	w.calls.replaced = true
	w.crew.begin(w.Dispatcher)
}
