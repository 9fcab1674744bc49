package kube

import (
	"log/slog"
	"maps"
	"slices"
	gostrings "strings"
	"sync"
	"time"
)

// How often an outage that lasts is told again: after firstReminder, and twice as long each time.
const (
	firstReminder = time.Minute
	lastReminder  = 30 * time.Minute
)

// outage tells that something does not work, for one or more kinds of objects: when it begins, when another reason comes
// in, now and then while it lasts, and when it ends for all of them. A mistake that all kinds meet is one line.
type outage struct {
	log    *slog.Logger
	now    func() time.Time
	what   string
	server string // its address

	mu      sync.Mutex
	failing map[string]string // the kinds, and why
	told    map[string]bool   // reasons, by what they have in common
	since   time.Time
	next    time.Time // to be told again
	pause   time.Duration
	tries   int
	over    chan struct{} // closed when the outage ends; nil: there is none
}

// is notes a failure for a kind of objects.
func (o *outage) is(kind string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, why, sort := o.now(), reason(err), sortOf(err)
	o.tries++
	if o.over == nil {
		o.since, o.pause, o.over = now, firstReminder, make(chan struct{})
		o.next = now.Add(o.pause)
		o.failing, o.told = map[string]string{}, map[string]bool{}
	}
	o.failing[kind] = why
	switch {
	case !o.told[sort]:
		o.told[sort] = true
		o.log.Warn(o.what, "object", kind, "server", o.server, "reason", why)
	case !now.Before(o.next):
		o.pause = min(2*o.pause, lastReminder)
		o.next = now.Add(o.pause)
		o.log.Warn(o.what, "object", o.kinds(), "server", o.server, "reason", why,
			"for", now.Sub(o.since).Round(time.Second), "tries", o.tries)
	}
}

func (o *outage) kinds() string {
	return gostrings.Join(slices.Sorted(maps.Keys(o.failing)), ", ")
}

// ends notes that it works for a kind.
func (o *outage) ends(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if delete(o.failing, kind); len(o.failing) == 0 {
		o.close()
	}
}

// endsAll notes that it works for all kinds.
func (o *outage) endsAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.close()
}

func (o *outage) close() {
	if o.over == nil {
		return
	}
	o.log.Info("no longer: "+o.what, "server", o.server, "after", o.now().Sub(o.since).Round(time.Millisecond), "tries", o.tries)
	close(o.over)
	o.failing, o.tries, o.over = nil, 0, nil
}

// why is the reason for a kind, "" when it works.
func (o *outage) why(kind string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failing[kind]
}

// end is closed when the outage that there is ends; nil when there is none.
func (o *outage) end() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}
