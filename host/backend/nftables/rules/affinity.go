package rules

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// affinityGroup is a Service port with session affinity. Its clients are recorded under its id, once for each list of
// endpoints that its frontends have: usually one, two if some frontends lead to local endpoints only.
type affinityGroup struct {
	id        uint32
	name      model.PortName // "" if it is not known which Service port had the id
	frontends int
	lists     []*endpointList
	changed   bool
}

// endpointList is the endpoints of one or more pools of a group. The lists of a group differ.
type endpointList struct {
	refs       int              // pools that use it
	wanted     []netip.AddrPort // sorted
	programmed []netip.AddrPort // sorted
}

type affinityGroups struct {
	byName  map[model.PortName]*affinityGroup
	byID    map[uint32]*affinityGroup
	last    uint32 // the highest id ever used; ids are not reused soon because clients may still be recorded under them
	changed []*affinityGroup
}

func (o *affinityGroups) markChanged(g *affinityGroup) {
	if !g.changed {
		g.changed = true
		o.changed = append(o.changed, g)
	}
}

func (o *affinityGroups) add(id uint32) *affinityGroup {
	g := &affinityGroup{id: id}
	o.byID[id] = g
	o.last = max(o.last, id)
	return g
}

func (g *affinityGroup) list(n int) *endpointList {
	for len(g.lists) <= n {
		g.lists = append(g.lists, &endpointList{})
	}
	return g.lists[n]
}

// has reports whether a list of a group has an endpoint in the kernel.
func (o *affinityGroups) has(f affinityFind, a netip.AddrPort) bool {
	g := o.byID[f.id]
	if g == nil || f.list >= len(g.lists) {
		return false
	}
	_, ok := slices.BinarySearchFunc(g.lists[f.list].programmed, a, netip.AddrPort.Compare)
	return ok
}

// detach removes a frontend that is about to change from its lists.
func (t *table) detach(h *elements) {
	if h == nil || len(h.learn) == 0 {
		return
	}
	g := t.groups.byID[h.learn[0].id]
	if g == nil {
		return
	}
	t.groups.markChanged(g)
	g.frontends--
	for l := range scopes {
		for _, v := range h.scopes[l].find {
			g.list(v.list).refs--
		}
	}
}

// attach gives a frontend its group's id and its pools their lists. All frontends of the group that change were
// detached before, so that a list whose endpoints change stays the same list and keeps its clients.
func (t *table) attach(h, before *elements, f *plan.Frontend) {
	g := t.groups.byName[f.Owner]
	if g == nil {
		g = t.groups.add(t.groups.last + 1)
		g.name = f.Owner
		t.groups.byName[f.Owner] = g
	}
	t.groups.markChanged(g)
	g.frontends++
	h.learn = []affinityLearn{{(f.Affinity + time.Millisecond - 1).Truncate(time.Millisecond), g.id}}
	for l := range scopes {
		endpoints := endpointsOf(h.scopes[l].slots.unpack())
		if len(endpoints) == 0 {
			continue
		}
		want := make([]netip.AddrPort, len(endpoints))
		for i, m := range endpoints {
			want[i] = m.Addr
		}
		last := -1
		if before != nil && len(before.scopes[l].find) > 0 {
			last = before.scopes[l].find[0].list
		}
		n := g.pickList(want, last)
		t.need(t.schema.endpointsSet(n))
		t.need(t.affinitySet(n))
		g.list(n).wanted = want
		g.list(n).refs++
		h.scopes[l].find = []affinityFind{{n, g.id}}
	}
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
		if free(n) && slices.Equal(l.programmed, want) {
			return n
		}
	}
	for n := 0; ; n++ {
		if free(n) && (n >= len(g.lists) || len(g.lists[n].programmed) == 0) {
			return n
		}
	}
}

// flushGroups writes the lists that changed. It reports whether one lost an endpoint, so that clients may have to be
// deleted.
func (t *table) flushGroups(x *tx) (lost bool, err error) {
	for _, g := range t.groups.changed {
		g.changed = false
		for n, l := range g.lists {
			if l.refs <= 0 {
				l.wanted = nil
			}
			for _, a := range l.programmed {
				if _, ok := slices.BinarySearchFunc(l.wanted, a, netip.AddrPort.Compare); !ok {
					lost = true
				}
			}
			err = changeSorted(l.programmed, l.wanted, func(a netip.AddrPort, add bool) error {
				e := nfnl.Element{Key: appendPort(appendAddr(native(g.id), a.Addr()), a.Port())}
				if add {
					x.add(t.schema.endpointsSet(n), e)
				} else {
					x.del(t.schema.endpointsSet(n), e)
				}
				if x.full() {
					return x.commit()
				}
				return nil
			})
			if err != nil {
				return lost, err
			}
			l.programmed = l.wanted
		}
		if g.frontends <= 0 {
			delete(t.groups.byID, g.id)
			if t.groups.byName[g.name] == g {
				delete(t.groups.byName, g.name)
			}
		}
		if x.shouldCommit() {
			if err := x.commit(); err != nil {
				return lost, err
			}
		}
	}
	t.groups.changed = t.groups.changed[:0]
	return lost, nil
}

// changeSorted calls change for the endpoints that only one of two sorted lists has.
func changeSorted(now, want []netip.AddrPort, change func(a netip.AddrPort, add bool) error) error {
	for len(now) > 0 || len(want) > 0 {
		order := -1
		switch {
		case len(now) == 0:
			order = 1
		case len(want) > 0:
			order = now[0].Compare(want[0])
		}
		switch {
		case order == 0:
			now, want = now[1:], want[1:]
			continue
		case order < 0:
			if err := change(now[0], false); err != nil {
				return err
			}
			now = now[1:]
		default:
			if err := change(want[0], true); err != nil {
				return err
			}
			want = want[1:]
		}
	}
	return nil
}

// loadGroups finds out which group each id belongs to. The endpoints of an unused id are deleted at the next commit.
func (t *table) loadGroups() {
	for k, h := range t.frontends {
		name, _, _, ok := parseComment(h.comment, k.Protocol)
		if !ok || len(h.learn) == 0 {
			continue
		}
		id := slices.MinFunc(h.learn, func(a, b affinityLearn) int { return cmp.Compare(a.id, b.id) }).id
		g := t.groups.byID[id]
		if g == nil {
			g = t.groups.add(id)
		}
		// If a group has two ids, the lower one stays.
		if o := t.groups.byName[name]; o == nil || id < o.id {
			t.groups.byName[name] = g
			g.name = name
		}
	}
	for _, g := range t.groups.byID {
		t.groups.markChanged(g)
		for _, l := range g.lists {
			slices.SortFunc(l.programmed, netip.AddrPort.Compare)
		}
	}
}

func (t *table) loadEndpoints(s *set, list int) func([]nfnl.Element) error {
	return func(elements []nfnl.Element) error {
		for _, e := range elements {
			if len(e.Key) < 8+t.addr.bytes {
				return errForeignElement(s)
			}
			a, ok := t.addrPort(e.Key[4:])
			if !ok {
				return errForeignElement(s)
			}
			g := t.groups.byID[groupIDOf(e.Key)]
			if g == nil {
				g = t.groups.add(groupIDOf(e.Key))
			}
			l := g.list(list)
			l.programmed = append(l.programmed, a)
		}
		return nil
	}
}

func groupIDOf(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
