package outcomes

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Open is a count of open connections. The attempts that a Tracker has counted since are added to it.
type Open struct {
	at    time.Time // zero: none
	count map[model.EndpointKey]uint32
}

// NewOpen returns a count that was made at a time, with the tracker of its Connections. It keeps the map. An earlier Open with
// that tracker is no longer valid.
func NewOpen(at time.Time, count map[model.EndpointKey]uint32, t *Tracker) Open {
	t.counts++
	return Open{at: at, count: count}
}

// Age returns how old the count is; ok is false if there is none.
func (c *Open) Age(now time.Time) (age time.Duration, ok bool) {
	if c.at.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(c.at)), true
}

// Connections returns the number of open connections to an endpoint; ok is false if it was not counted.
func (c *Open) Connections(k model.EndpointKey, t *Tracker) (n uint32, ok bool) {
	counted, ok := c.count[k]
	if !ok {
		return 0, false
	}
	total := uint64(counted)
	if e := t.endpoints[k]; e != nil && e.counts == t.counts {
		total += e.attempts - e.before
	}
	return uint32(min(total, 1<<32-1)), true
}
