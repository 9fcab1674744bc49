package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// drainInterval is how often members that linger are asked for their connections.
const drainInterval = time.Minute

// drainTracker is what is known of members that are in no plan any more but have connections.
type drainTracker struct {
	servers  map[serverKey]bool // that have such members
	pending  map[serverKey]bool // of those, the ones to be looked at now
	since    map[drainKey]time.Time
	nextScan time.Time // when to look at all of them
}

type drainKey struct {
	server      serverKey
	destination netip.AddrPort
}

func (l *drainTracker) add(k serverKey) {
	if l.servers == nil {
		l.servers, l.pending, l.since = map[serverKey]bool{}, map[serverKey]bool{}, map[drainKey]time.Time{}
	}
	l.servers[k], l.pending[k] = true, true
}

func (l *drainTracker) remove(k serverKey) {
	delete(l.servers, k)
	delete(l.pending, k)
	maps.DeleteFunc(l.since, func(i drainKey, _ time.Time) bool { return i.server == k })
}

// reset finds those that were left lingering. How long they did so before is not known.
func (l *drainTracker) reset(servers map[serverKey]*virtualServer) {
	since := l.since
	*l = drainTracker{}
	for k, s := range servers {
		for _, m := range s.destinations {
			if m.draining {
				l.add(k)
				if t, ok := since[drainKey{k, m.addr}]; ok {
					l.since[drainKey{k, m.addr}] = t
				}
			}
		}
	}
}

// reapDrained deletes members that linger for nothing, and tells when to look again.
func (b *Backend) reapDrained(all bool) (time.Duration, error) {
	l, now := &b.drains, b.o.Now()
	list := l.pending
	if all || !l.nextScan.IsZero() && !now.Before(l.nextScan) {
		list, l.nextScan = l.servers, time.Time{}
	}
	for _, k := range slices.SortedFunc(maps.Keys(list), compareKeys) {
		if err := b.reapServer(k, now); err != nil {
			return 0, err
		}
	}
	clear(l.pending)
	if len(l.servers) == 0 {
		l.nextScan = time.Time{}
		return 0, nil
	}
	if l.nextScan.IsZero() {
		l.nextScan = now.Add(drainInterval)
	}
	return max(l.nextScan.Sub(now), time.Millisecond), nil
}

// reapServer asks one virtual server for the connections of its members that linger.
func (b *Backend) reapServer(k serverKey, now time.Time) error {
	s := b.state.servers[k]
	if s == nil {
		b.drains.remove(k)
		return nil
	}
	list, err := b.ipvs.listDestinations(k)
	if err != nil {
		return err
	}
	left := false
	for _, m := range list {
		at, ok := s.find(m.addr)
		if !ok || !s.destinations[at].draining {
			continue
		}
		id := drainKey{k, m.addr}
		since, known := b.drains.since[id]
		if !known {
			since = now
			b.drains.since[id] = now
		}
		// Inactive are those that one side has closed: the other may send for long, and IPVS ends them by itself.
		conns := m.active + m.inactive
		if conns > 0 && now.Sub(since) < b.o.DrainTimeout {
			left = true
			continue
		}
		if err := b.send(op{kind: opDelDestination, key: k, destination: m.destination}); err != nil {
			return err
		}
		s.destinations = slices.Delete(s.destinations, at, at+1)
		delete(b.drains.since, id)
	}
	if !left {
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
