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

// contact knows since when a kind is not followed.
type contact struct {
	now func() time.Time

	mu      sync.Mutex
	turn    int       // counts the watches, so that the end of one is not taken for that of the next
	since   time.Time // zero: it is followed
	without bool      // the server has no such kind
}

func newContact(now func() time.Time) *contact { return &contact{now: now, since: now()} }

// is notes that the kind is followed, until isNot is told of the same turn.
func (c *contact) is() (turn int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn++
	c.since, c.without = time.Time{}, false
	return c.turn
}

func (c *contact) isNot(turn int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn == turn && c.since.IsZero() {
		c.since = c.now()
	}
}

// none notes that there is nothing to follow.
func (c *contact) none() {
	c.mu.Lock()
	c.without = true
	c.mu.Unlock()
}

func (c *contact) stale() (since time.Duration, without bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return 0, c.without
	}
	return c.now().Sub(c.since), c.without
}

// WatchStatuses says how each kind is followed. It may be called at any time, by any goroutine.
func (s *Source) WatchStatuses() []WatchStatus {
	s.mu.Lock()
	listers := s.listers
	s.mu.Unlock()
	var out []WatchStatus
	for _, l := range listers {
		stale, without := l.contact.stale()
		if without {
			continue
		}
		c := WatchStatus{Resource: l.from.label, StaleFor: stale}
		if stale > 0 {
			if c.Reason = l.server.why(l.from.name); c.Reason == "" {
				c.Reason = l.refused.why(l.from.name)
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
