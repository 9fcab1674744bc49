package kube

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// An outage that lasts is logged again after firstReminder, then at intervals that double up to maxReminder.
const (
	firstReminder = time.Minute
	maxReminder   = 30 * time.Minute
)

// outageTracker logs failures of one kind that affect one or more resources: the first one, each with a new status
// class, reminders, and the recovery of all resources. A mistake that affects every resource is one line.
type outageTracker struct {
	log       *slog.Logger
	now       func() time.Time
	message   string
	recovered string // message of the recovery
	server    string // its address

	mu               sync.Mutex
	failing          map[string]string // reason by resource
	logged           map[string]bool   // status classes
	since            time.Time
	nextReminder     time.Time
	reminderInterval time.Duration
	failures         int
	over             chan struct{} // closed when the outage ends; nil: there is none
}

// fail records a failure for a resource.
func (o *outageTracker) fail(name string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, text, class := o.now(), shortError(err), statusClass(err)
	o.failures++
	if o.over == nil {
		o.since, o.reminderInterval, o.over = now, firstReminder, make(chan struct{})
		o.nextReminder = now.Add(o.reminderInterval)
		o.failing, o.logged = map[string]string{}, map[string]bool{}
	}
	o.failing[name] = text
	switch {
	case !o.logged[class]:
		o.logged[class] = true
		o.log.Warn(o.message, "resource", name, "server", o.server, "reason", text)
	case !now.Before(o.nextReminder):
		o.reminderInterval = min(2*o.reminderInterval, maxReminder)
		o.nextReminder = now.Add(o.reminderInterval)
		o.log.Warn(o.message, "resource", o.failingResources(), "server", o.server, "reason", text,
			"duration", now.Sub(o.since).Round(time.Second), "failures", o.failures)
	}
}

func (o *outageTracker) failingResources() string {
	return strings.Join(slices.Sorted(maps.Keys(o.failing)), ", ")
}

// recover records a success for a resource.
func (o *outageTracker) recover(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if delete(o.failing, name); len(o.failing) == 0 {
		o.end()
	}
}

// recoverAll records a success for all resources.
func (o *outageTracker) recoverAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
}

func (o *outageTracker) end() {
	if o.over == nil {
		return
	}
	o.log.Info(o.recovered, "server", o.server, "duration", o.now().Sub(o.since).Round(time.Millisecond), "failures", o.failures)
	close(o.over)
	o.failing, o.failures, o.over = nil, 0, nil
}

// reason returns why a resource fails, "" when it does not.
func (o *outageTracker) reason(name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failing[name]
}

// ended returns a channel that is closed when the present outage ends; nil when there is none.
func (o *outageTracker) ended() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}
