package kube

import (
	"log/slog"
	"sync"
	"time"
)

// How often an outage that lasts is told again: after firstReminder, and twice as long each time.
const (
	firstReminder = time.Minute
	lastReminder  = 30 * time.Minute
)

// outage tells that something does not work: when it begins, now and then while it lasts, and when it ends.
type outage struct {
	log  *slog.Logger
	now  func() time.Time
	what string

	mu     sync.Mutex
	since  time.Time // zero: there is none
	next   time.Time // to be told again
	pause  time.Duration
	failed int
	over   chan struct{} // closed when the outage ends; nil: there is none
}

// is notes a failure.
func (o *outage) is(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	o.failed++
	switch {
	case o.since.IsZero():
		o.since, o.pause, o.over = now, firstReminder, make(chan struct{})
		o.log.Warn(o.what, "err", err)
	case now.Before(o.next):
		return
	default:
		o.pause = min(2*o.pause, lastReminder)
		o.log.Warn(o.what, "err", err, "for", now.Sub(o.since).Round(time.Second), "tries", o.failed)
	}
	o.next = now.Add(o.pause)
}

// ends notes that it works.
func (o *outage) ends() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return
	}
	o.log.Info("no longer: "+o.what, "after", o.now().Sub(o.since).Round(time.Millisecond), "tries", o.failed)
	close(o.over)
	o.since, o.failed, o.over = time.Time{}, 0, nil
}

// end is closed when the outage that there is ends; nil when there is none.
func (o *outage) end() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}
