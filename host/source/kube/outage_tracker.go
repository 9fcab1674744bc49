package kube

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// How often an outage that lasts is told again: after firstReminder, and twice as long each time.
const (
	firstReminder = time.Minute
	lastReminder  = 30 * time.Minute
)

// outageTracker tells that something does not work, for one or more kinds of objects: when it begins, when another reason comes
// in, now and then while it lasts, and when it ends for all of them. A mistake that all kinds meet is one line.
type outageTracker struct {
	log     *slog.Logger
	now     func() time.Time
	message string
	server  string // its address

	mu               sync.Mutex
	failing          map[string]string // the kinds, and why
	logged           map[string]bool   // reasons, by what they have in common
	since            time.Time
	nextReminder     time.Time // to be told again
	reminderInterval time.Duration
	failures         int
	over             chan struct{} // closed when the outage ends; nil: there is none
}

// fail notes a failure for a kind of objects.
func (o *outageTracker) fail(kind string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, text, class := o.now(), shortError(err), statusClass(err)
	o.failures++
	if o.over == nil {
		o.since, o.reminderInterval, o.over = now, firstReminder, make(chan struct{})
		o.nextReminder = now.Add(o.reminderInterval)
		o.failing, o.logged = map[string]string{}, map[string]bool{}
	}
	o.failing[kind] = text
	switch {
	case !o.logged[class]:
		o.logged[class] = true
		o.log.Warn(o.message, "object", kind, "server", o.server, "reason", text)
	case !now.Before(o.nextReminder):
		o.reminderInterval = min(2*o.reminderInterval, lastReminder)
		o.nextReminder = now.Add(o.reminderInterval)
		o.log.Warn(o.message, "object", o.failingKinds(), "server", o.server, "reason", text,
			"for", now.Sub(o.since).Round(time.Second), "tries", o.failures)
	}
}

func (o *outageTracker) failingKinds() string {
	return strings.Join(slices.Sorted(maps.Keys(o.failing)), ", ")
}

// recover notes that it works for a kind.
func (o *outageTracker) recover(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if delete(o.failing, kind); len(o.failing) == 0 {
		o.end()
	}
}

// recoverAll notes that it works for all kinds.
func (o *outageTracker) recoverAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
}

func (o *outageTracker) end() {
	if o.over == nil {
		return
	}
	o.log.Info("no longer: "+o.message, "server", o.server, "after", o.now().Sub(o.since).Round(time.Millisecond), "tries", o.failures)
	close(o.over)
	o.failing, o.failures, o.over = nil, 0, nil
}

// reason is the reason for a kind, "" when it works.
func (o *outageTracker) reason(kind string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failing[kind]
}

// ended is closed when the outage that there is ends; nil when there is none.
func (o *outageTracker) ended() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}
