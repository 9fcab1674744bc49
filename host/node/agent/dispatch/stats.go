package dispatch

import (
	"maps"
	"time"
)

// Stats are the statistics of a plugin with all its settings.
type Stats struct {
	Queued    int           // calls
	Throttled time.Duration // since the start, time for which calls have waited for CPU time
	CPU       time.Duration // of all calls since the start
}

// Stats returns the statistics by plugin.
func (d *Dispatcher) Stats() map[string]Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, out := time.Now(), maps.Clone(d.past)
	for _, q := range d.queues {
		out[q.plugin] = out[q.plugin].add(q, now)
	}
	return out
}

// add returns the sum of the statistics and those of a queue.
func (s Stats) add(q *queue, now time.Time) Stats {
	s.Queued += q.queued()
	s.CPU += q.cpu
	s.Throttled += q.throttled
	if !q.throttledSince.IsZero() {
		s.Throttled += now.Sub(q.throttledSince)
	}
	return s
}
