package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// drainInterval is how often draining destinations are checked for connections.
const drainInterval = time.Minute

// drainTracker tracks the virtual servers that have draining destinations.
type drainTracker struct {
	servers  map[serverKey]bool
	pending  map[serverKey]bool // those of servers to check in this Apply
	since    map[drainKey]time.Time
	nextScan time.Time // when to check all of them; zero if there are none
}

type drainKey struct {
	server      serverKey
	destination netip.AddrPort
}

func (t *drainTracker) add(k serverKey) {
	if t.servers == nil {
		t.servers, t.pending, t.since = map[serverKey]bool{}, map[serverKey]bool{}, map[drainKey]time.Time{}
	}
	t.servers[k], t.pending[k] = true, true
}

func (t *drainTracker) remove(k serverKey) {
	delete(t.servers, k)
	delete(t.pending, k)
	maps.DeleteFunc(t.since, func(d drainKey, _ time.Time) bool { return d.server == k })
}

// reset tracks the draining destinations of the given servers. It keeps the known start times; after a restart none is
// known, and the drain timeout starts again.
func (t *drainTracker) reset(servers map[serverKey]*virtualServer) {
	since := t.since
	*t = drainTracker{}
	for k, s := range servers {
		for _, d := range s.destinations {
			if d.draining {
				t.add(k)
				if start, ok := since[drainKey{k, d.addr}]; ok {
					t.since[drainKey{k, d.addr}] = start
				}
			}
		}
	}
}

// reapDrained deletes draining destinations without connections, and returns when to call it again; 0 is never.
func (b *Backend) reapDrained(all bool) (time.Duration, error) {
	t, now := &b.drains, b.o.Now()
	check := t.pending
	if all || !t.nextScan.IsZero() && !now.Before(t.nextScan) {
		check, t.nextScan = t.servers, time.Time{}
	}
	for _, k := range slices.SortedFunc(maps.Keys(check), compareKeys) {
		if err := b.reapServer(k, now); err != nil {
			return 0, fmt.Errorf("ipvs: %w", err)
		}
	}
	clear(t.pending)
	if len(t.servers) == 0 {
		t.nextScan = time.Time{}
		return 0, nil
	}
	if t.nextScan.IsZero() {
		t.nextScan = now.Add(drainInterval)
	}
	return max(t.nextScan.Sub(now), time.Millisecond), nil
}

// reapServer deletes the draining destinations of one virtual server that have no connections.
func (b *Backend) reapServer(k serverKey, now time.Time) error {
	s := b.state.servers[k]
	if s == nil {
		b.drains.remove(k)
		return nil
	}
	list, err := b.ipvs.listDestinations(k)
	if err != nil {
		return fmt.Errorf("list real servers of virtual server %s: %w", k, withHint(err))
	}
	draining := false
	for _, d := range list {
		at, ok := s.find(d.addr)
		if !ok || !s.destinations[at].draining {
			continue
		}
		id := drainKey{k, d.addr}
		since, known := b.drains.since[id]
		if !known {
			since = now
			b.drains.since[id] = now
		}
		// Inactive connections count: one side has closed them, and the other may go on sending. IPVS expires them.
		if d.active+d.inactive > 0 && now.Sub(since) < b.o.DrainTimeout {
			draining = true
			continue
		}
		if err := b.send(op{kind: opDelDestination, key: k, destination: d.destination}); err != nil {
			return err
		}
		s.destinations = slices.Delete(s.destinations, at, at+1)
		delete(b.drains.since, id)
	}
	if !draining {
		b.drains.remove(k)
	}
	if err := b.deleteIfUnused(k); err != nil || b.state.servers[k] != nil {
		return err
	}
	if s.vip.IsValid() {
		b.markIdle(s.vip)
	} else {
		b.markAllIdle()
	}
	return nil
}
