package outcomes

import (
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// Open is a count of open connections. The attempts that a Tracker has counted since are added to it.
type Open struct {
	at    time.Time // zero: none
	count map[model.EndpointKey]uint32
	// base are the attempts that the tracker had counted at that time.
	base map[model.EndpointKey]attempts
}

// attempts is a number of connections since a time, Unix milliseconds.
type attempts struct {
	total uint64
	since int64
}

// NewOpen returns a count that was made at a time. It keeps the map.
func NewOpen(at time.Time, count map[model.EndpointKey]uint32, t *Tracker) Open {
	base := make(map[model.EndpointKey]attempts, len(count))
	for k := range count {
		if o, _, ok := t.Get(k); ok {
			base[k] = attempts{o.TotalAttempts, o.Since}
		}
	}
	return Open{at: at, count: count, base: base}
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
	if o, _, known := t.Get(k); known {
		if base := c.base[k]; base.since == o.Since {
			total += o.TotalAttempts - base.total
		} else {
			total += o.TotalAttempts
		}
	}
	return uint32(min(total, 1<<32-1)), true
}
