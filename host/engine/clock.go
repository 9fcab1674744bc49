package engine

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
)

// ClockReading is a reading of the node's clocks.
type ClockReading struct {
	Wall time.Time
	// SinceBoot is the time since the boot, including the time for which the machine was suspended (CLOCK_BOOTTIME). Setting
	// the wall clock does not change it.
	SinceBoot time.Duration
	Boot      string // differs between boots; "" if unknown
}

// runtimeClock returns the clock of the Go runtime, which stops while the machine is suspended and cannot be continued by
// another process.
func runtimeClock() func() ClockReading {
	start := time.Now()
	return func() ClockReading { return ClockReading{Wall: time.Now(), SinceBoot: time.Since(start)} }
}

// planClock is the clock of the planner. It starts with the wall time of the first plan, and then only advances: nobody can
// set it, and it does not stop while the machine is suspended. A restart continues it, see policy.Evaluator.Restore.
type planClock struct {
	read    func() ClockReading
	epoch   policy.Epoch
	started bool
	ahead   time.Duration // of it was the wall clock at the last plan
}

// newEpoch returns the epoch of a clock that starts with the wall time of r.
func newEpoch(r ClockReading) policy.Epoch {
	return policy.Epoch{Boot: r.Boot, At: r.Wall.Add(-r.SinceBoot).UnixMilli()}
}

// now starts the clock if it has not been started. It returns the time, and by how much the wall clock is ahead.
func (c *planClock) now() (now time.Time, ahead time.Duration) {
	r := c.read()
	if !c.started {
		c.epoch, c.started = newEpoch(r), true
	}
	now = time.UnixMilli(c.epoch.At).Add(r.SinceBoot)
	return now, r.Wall.Sub(now)
}

// planTime returns the time for a plan, and logs if the wall clock has been set since the last one.
func (e *Engine) planTime() time.Time {
	now, ahead := e.clock.now()
	if by := ahead - e.clock.ahead; by.Abs() >= time.Second {
		e.Log.Info("the wall clock was set; drains and other waits keep their length", "by", by.Round(time.Millisecond))
		e.clock.ahead = ahead
	}
	return now
}

// maxSleep bounds the sleep of the loop while it waits for a time of the planner. Timers do not run while the machine is
// suspended, so after that a plan may be late by as much.
const maxSleep = 500 * time.Millisecond

// untilDue returns how long the loop sleeps until it looks at the time again: zero if a step is due, negative if only a change
// makes it so. wake is by the runtime's clock, Engine.planAt by the planner's.
func (e *Engine) untilDue(wake time.Time) time.Duration {
	sleep := time.Duration(-1)
	if !wake.IsZero() {
		sleep = max(0, time.Until(wake))
	}
	if !e.planAt.IsZero() {
		now, _ := e.clock.now()
		if left := min(max(0, e.planAt.Sub(now)), maxSleep); sleep < 0 || left < sleep {
			sleep = left
		}
	}
	return sleep
}

// WallTime converts a time of the planner, in Unix milliseconds, to the time that the wall clock will show then. It must be
// called in a function that Do runs.
func (e *Engine) WallTime(ms int64) time.Time {
	_, ahead := e.clock.now()
	return time.UnixMilli(ms).Add(ahead)
}
