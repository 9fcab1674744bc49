package kube

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// WatchStatus is the state of the watch of one resource.
type WatchStatus struct {
	Resource string        // as the API names it; "node" is this node's own Node
	StaleFor time.Duration // for how long the resource has not been watched or polled; 0: it is up to date
	Reason   string        // why not; "" when unknown
}

// watchState tracks since when one resource is neither watched nor polled.
type watchState struct {
	now func() time.Time

	mu          sync.Mutex
	epoch       int       // incremented by each watch, so that the late end of one does not end its successor
	staleSince  time.Time // zero: watched
	unavailable bool      // the server does not have the resource, or does not show it
}

func newWatchState(now func() time.Time) *watchState { return &watchState{now: now, staleSince: now()} }

// markWatching marks the resource as watched until markStopped is called with the returned epoch.
func (c *watchState) markWatching() (epoch int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.staleSince, c.unavailable = time.Time{}, false
	return c.epoch
}

func (c *watchState) markStopped(epoch int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch == epoch && c.staleSince.IsZero() {
		c.staleSince = c.now()
	}
}

// markUnavailable records that there is nothing to watch.
func (c *watchState) markUnavailable() {
	c.mu.Lock()
	c.unavailable = true
	c.mu.Unlock()
}

func (c *watchState) staleFor() (age time.Duration, unavailable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.staleSince.IsZero() {
		return 0, c.unavailable
	}
	return c.now().Sub(c.staleSince), c.unavailable
}

// WatchStatuses returns the status of each watched resource: of one with several watches, that of the most stale one. It is safe
// for concurrent use.
func (s *Source) WatchStatuses() []WatchStatus {
	s.mu.Lock()
	listers := s.listers
	s.mu.Unlock()
	var out []WatchStatus
	for _, l := range listers {
		age, unavailable := l.state.staleFor()
		if unavailable {
			continue
		}
		c := WatchStatus{Resource: l.resource.label, StaleFor: age}
		if age > 0 {
			if c.Reason = l.unreachable.reason(l.resource.name); c.Reason == "" {
				c.Reason = l.refused.reason(l.resource.name)
			}
		}
		if i := slices.IndexFunc(out, func(other WatchStatus) bool { return other.Resource == c.Resource }); i >= 0 {
			if c.StaleFor > out[i].StaleFor {
				out[i] = c
			}
			continue
		}
		out = append(out, c)
	}
	return out
}

// StaleReason returns why cluster state may be stale, "" when every resource is watched. A watch that ends and is
// resumed at once does not count.
func (s *Source) StaleReason() string {
	for _, c := range s.WatchStatuses() {
		if c.Reason != "" {
			return fmt.Sprintf("API server %s: %s not watched for %s: %s", s.opt.Client.Server(), c.Resource, c.StaleFor.Round(time.Second), c.Reason)
		}
	}
	return ""
}
