package kube

import (
	"fmt"
	"sync"
	"time"
)

// WatchStatus is how one kind of objects is followed.
type WatchStatus struct {
	Resource string        // as the API names it; "node" is this node's own Node
	StaleFor time.Duration // since when it is not watched, nor read; 0: it is
	Reason   string        // why not, as far as it is known
}

// watchState knows since when a kind is not followed.
type watchState struct {
	now func() time.Time

	mu          sync.Mutex
	epoch       int       // counts the watches, so that the end of one is not taken for that of the next
	staleSince  time.Time // zero: it is followed
	unavailable bool      // the server has no such kind
}

func newWatchState(now func() time.Time) *watchState { return &watchState{now: now, staleSince: now()} }

// markWatching notes that the kind is followed, until isNot is told of the same turn.
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

// markUnavailable notes that there is nothing to follow.
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

// WatchStatuses says how each kind is followed. It may be called at any time, by any goroutine.
func (s *Source) WatchStatuses() []WatchStatus {
	s.mu.Lock()
	listers := s.listers
	s.mu.Unlock()
	var out []WatchStatus
	for _, l := range listers {
		stale, without := l.state.staleFor()
		if without {
			continue
		}
		c := WatchStatus{Resource: l.resource.label, StaleFor: stale}
		if stale > 0 {
			if c.Reason = l.unreachable.reason(l.resource.name); c.Reason == "" {
				c.Reason = l.refused.reason(l.resource.name)
			}
		}
		out = append(out, c)
	}
	return out
}

// StaleReason says why cluster state may be old, "" when all of it is followed. What is not followed for a moment only, as when
// a watch ends and is taken up again, does not count.
func (s *Source) StaleReason() string {
	for _, c := range s.WatchStatuses() {
		if c.Reason != "" {
			return fmt.Sprintf("API server %s: %s not watched for %s: %s", s.opt.Client.Server(), c.Resource, c.StaleFor.Round(time.Second), c.Reason)
		}
	}
	return ""
}
