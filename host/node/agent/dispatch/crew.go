package dispatch

import (
	"sync"
	"time"
)

// crew is the workers of the plugins of policies, or of those of shadows.
type crew struct {
	shadow  bool
	workers int
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
