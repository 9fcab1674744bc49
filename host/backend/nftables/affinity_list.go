package nftables

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// endpointList is the endpoints of one or more pools of a group. The lists of a group differ.
type endpointList struct {
	refs       int              // pools that use it
	wanted     []netip.AddrPort // sorted
	programmed []listedEndpoint // sorted
	last       uint16           // the id used last: ids are not reused soon, because clients are recorded with them
}

// listedEndpoint is an endpoint and its id. An endpoint that comes back gets another one, so that the clients recorded
// before it left do not return to it.
type listedEndpoint struct {
	addr netip.AddrPort
	id   uint16
}

// find returns the position of an endpoint.
func (l *endpointList) find(a netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(l.programmed, a, func(e listedEndpoint, a netip.AddrPort) int { return e.addr.Compare(a) })
}

// sameAs reports whether the kernel has the endpoints, and no others.
func (l *endpointList) sameAs(want []netip.AddrPort) bool {
	return slices.EqualFunc(l.programmed, want, func(e listedEndpoint, a netip.AddrPort) bool { return e.addr == a })
}

// nextID returns an unused id.
func (l *endpointList) nextID(used map[uint16]bool) uint16 {
	for {
		if l.last++; l.last != 0 && !used[l.last] {
			return l.last
		}
	}
}

func (g *affinityGroup) list(n int) *endpointList {
	for len(g.lists) <= n {
		g.lists = append(g.lists, &endpointList{})
	}
	return g.lists[n]
}

// pickList returns the list for these endpoints: one with the same endpoints, or an unused one, preferably the last one
// used, one that has the same endpoints in the kernel, or an empty one.
func (g *affinityGroup) pickList(want []netip.AddrPort, last int) int {
	free := func(n int) bool { return n >= len(g.lists) || g.lists[n].refs == 0 }
	for n, l := range g.lists {
		if l.refs > 0 && slices.Equal(l.wanted, want) {
			return n
		}
	}
	if last >= 0 && free(last) {
		return last
	}
	for n, l := range g.lists {
		if free(n) && l.sameAs(want) {
			return n
		}
	}
	for n := 0; ; n++ {
		if free(n) && (n >= len(g.lists) || len(g.lists[n].programmed) == 0) {
			return n
		}
	}
}

// flushGroups writes the lists that changed. It commits when the transaction is full.
func (t *table) flushGroups(x *tx) error {
	for _, g := range t.groups.changed {
		g.changed = false
		for n, l := range g.lists {
			if l.refs <= 0 {
				l.wanted = nil
			}
			if l.sameAs(l.wanted) {
				continue
			}
			if err := t.flushList(x, g.id, n, l); err != nil {
				return err
			}
		}
		if g.frontends <= 0 {
			t.groups.remove(g)
		}
		if x.shouldCommit() {
			if err := x.commit(); err != nil {
				return err
			}
		}
	}
	t.groups.changed = t.groups.changed[:0]
	return nil
}

// flushList brings a list in the kernel to what is wanted. It commits when the transaction is full. Clients of an endpoint that
// left stay recorded: the rules find out and delete them.
func (t *table) flushList(x *tx, group affinityID, n int, l *endpointList) error {
	endpoints, targets := t.endpointsSet(n), t.targetsSet(n)
	used := make(map[uint16]bool, len(l.programmed))
	for _, e := range l.programmed {
		used[e.id] = true
		if _, ok := slices.BinarySearchFunc(l.wanted, e.addr, netip.AddrPort.Compare); !ok {
			x.del(endpoints, nfnl.Element{Key: endpointKey(group, e.addr)})
			x.del(targets, nfnl.Element{Key: group.endpoint(e.id).bytes()})
			if err := x.commitIfFull(); err != nil {
				return err
			}
		}
	}
	next := make([]listedEndpoint, 0, len(l.wanted))
	for _, a := range l.wanted {
		if at, ok := l.find(a); ok {
			next = append(next, l.programmed[at])
			continue
		}
		e := listedEndpoint{a, l.nextID(used)}
		used[e.id] = true
		next = append(next, e)
		id := group.endpoint(e.id).bytes()
		x.add(endpoints, nfnl.Element{Key: endpointKey(group, a), Data: id})
		x.add(targets, nfnl.Element{Key: id, Data: endpointData(a)})
		if err := x.commitIfFull(); err != nil {
			return err
		}
	}
	l.programmed = next
	return nil
}
