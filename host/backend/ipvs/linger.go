package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// lingerCheck is how often members that linger are asked for their connections.
const lingerCheck = time.Minute

// linger is what is known of members that are in no plan any more but have connections.
type linger struct {
	servers map[serverKey]bool // that have such members
	fresh   map[serverKey]bool // of those, the ones to be looked at now
	since   map[lingerer]time.Time
	next    time.Time // when to look at all of them
}

type lingerer struct {
	server serverKey
	member netip.AddrPort
}

func (l *linger) add(k serverKey) {
	if l.servers == nil {
		l.servers, l.fresh, l.since = map[serverKey]bool{}, map[serverKey]bool{}, map[lingerer]time.Time{}
	}
	l.servers[k], l.fresh[k] = true, true
}

func (l *linger) drop(k serverKey) {
	delete(l.servers, k)
	delete(l.fresh, k)
	maps.DeleteFunc(l.since, func(i lingerer, _ time.Time) bool { return i.server == k })
}

// adopt finds those that were left lingering. How long they did so before is not known.
func (l *linger) adopt(servers map[serverKey]*server) {
	since := l.since
	*l = linger{}
	for k, s := range servers {
		for _, m := range s.members {
			if m.lingering {
				l.add(k)
				if t, ok := since[lingerer{k, m.addr}]; ok {
					l.since[lingerer{k, m.addr}] = t
				}
			}
		}
	}
}

// lookAfter deletes members that linger for nothing, and tells when to look again.
func (b *Backend) lookAfter(all bool) (time.Duration, error) {
	l, now := &b.linger, b.o.Now()
	list := l.fresh
	if all || !l.next.IsZero() && !now.Before(l.next) {
		list, l.next = l.servers, time.Time{}
	}
	for _, k := range slices.SortedFunc(maps.Keys(list), compareServers) {
		if err := b.look(k, now); err != nil {
			return 0, err
		}
	}
	clear(l.fresh)
	if len(l.servers) == 0 {
		l.next = time.Time{}
		return 0, nil
	}
	if l.next.IsZero() {
		l.next = now.Add(lingerCheck)
	}
	return max(l.next.Sub(now), time.Millisecond), nil
}

// look asks one virtual server for the connections of its members that linger.
func (b *Backend) look(k serverKey, now time.Time) error {
	s := b.now.servers[k]
	if s == nil {
		b.linger.drop(k)
		return nil
	}
	list, err := b.ipvs.members(k)
	if err != nil {
		return err
	}
	left := false
	for _, m := range list {
		at, ok := s.find(m.addr)
		if !ok || !s.members[at].lingering {
			continue
		}
		id := lingerer{k, m.addr}
		since, known := b.linger.since[id]
		if !known {
			since = now
			b.linger.since[id] = now
		}
		// Inactive are those that one side has closed: the other may send for long, and IPVS ends them by itself.
		conns := m.active + m.inactive
		if conns > 0 && now.Sub(since) < b.o.DrainTimeout {
			left = true
			continue
		}
		if err := b.do(op{kind: delMember, key: k, member: m.member}); err != nil {
			return err
		}
		s.members = slices.Delete(s.members, at, at+1)
		delete(b.linger.since, id)
	}
	if !left {
		b.linger.drop(k)
	}
	if err := b.removeEmpty(k); err != nil || b.now.servers[k] != nil {
		return err
	}
	if s.home.IsValid() {
		b.rest(s.home)
	} else {
		b.restAll()
	}
	return nil
}
