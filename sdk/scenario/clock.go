package scenario

import (
	"container/heap"
	"time"
)

// Clock is virtual time, in which timers fire in order: by time, then as they were set. The zero value is at time 0.
type Clock struct {
	// Settle, if not nil, ends an instant in which something has happened, before the time moves on.
	Settle func() error

	now    time.Duration
	timers timers
	set    int
}

// Timer calls a function at a time. It is of one Clock.
type Timer struct {
	clock *Clock
	do    func() error
	at    time.Duration
	order int
	index int // in timers; -1: not set
}

// Now returns the time since the beginning.
func (c *Clock) Now() time.Duration { return c.now }

// Timer returns a timer that is not set.
func (c *Clock) Timer(do func() error) *Timer { return &Timer{clock: c, do: do, index: -1} }

// After calls a function once, after a duration.
func (c *Clock) After(d time.Duration, do func() error) { c.Timer(do).Set(c.now + d) }

// Set sets the timer to a time, instead of the one to which it is set.
func (t *Timer) Set(at time.Duration) {
	t.Stop()
	t.clock.set++
	t.at, t.order = at, t.clock.set
	heap.Push(&t.clock.timers, t)
}

// Stop prevents that the timer fires.
func (t *Timer) Stop() {
	if t.index >= 0 {
		heap.Remove(&t.clock.timers, t.index)
	}
}

// Advance moves the time, and fires what is due until then. It does not settle the time at which it ends.
func (c *Clock) Advance(to time.Duration) error {
	for {
		if c.due(c.now) {
			if err := heap.Pop(&c.timers).(*Timer).do(); err != nil {
				return err
			}
			continue
		}
		if c.now >= to {
			return nil
		}
		if err := c.settle(); err != nil {
			return err
		}
		next := to
		if c.due(to) {
			next = c.timers[0].at
		}
		c.now = max(c.now, next)
	}
}

func (c *Clock) due(at time.Duration) bool { return len(c.timers) > 0 && c.timers[0].at <= at }

func (c *Clock) settle() error {
	if c.Settle == nil {
		return nil
	}
	return c.Settle()
}

// Finish fires all timers that are set to a time until end, and settles the last instant.
func (c *Clock) Finish(end time.Duration) error {
	for c.due(end) {
		if err := c.Advance(c.timers[0].at); err != nil {
			return err
		}
	}
	return c.settle()
}

// timers implements heap.Interface.
type timers []*Timer

func (q timers) Len() int { return len(q) }
func (q timers) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}

func (q timers) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *timers) Push(x any) {
	t := x.(*Timer)
	t.index = len(*q)
	*q = append(*q, t)
}

// Pop implements heap.Interface.
func (q *timers) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	t.index = -1
	*q = (*q)[:last]
	return t
}
