package nftables

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// loadGroups finds out which group each id belongs to. The endpoints of an unused id are deleted at the next commit.
func (t *table) loadGroups() {
	for k, h := range t.frontends {
		name, _, _, ok := parseComment(h.comment, k.Protocol)
		if !ok || len(h.groups) == 0 {
			continue
		}
		id := slices.Min(h.groups)
		g := t.groups.byID[id]
		if g == nil {
			g = t.groups.add(id)
		}
		// If a group has two ids, the lower one stays.
		if o := t.groups.byName[name]; o == nil || id < o.id {
			t.groups.setName(g, name)
		}
	}
	for _, g := range t.groups.byID {
		t.groups.markChanged(g)
	}
}

// loadEndpoints stores the endpoints of a list, and loadTargets checks that its other map has the same.
func (t *table) loadEndpoints(s *set, list int) func([]nfnl.Element) error {
	return func(elements []nfnl.Element) error {
		for _, e := range elements {
			if !t.loadEndpoint(list, e) {
				return errForeignElement(s)
			}
		}
		for _, g := range t.groups.byID {
			if list < len(g.lists) {
				slices.SortFunc(g.lists[list].programmed, func(a, b listedEndpoint) int { return a.addr.Compare(b.addr) })
			}
		}
		return nil
	}
}

func (t *table) loadEndpoint(list int, e nfnl.Element) (ok bool) {
	if len(e.Key) < 8+t.addr.bytes {
		return false
	}
	group, _ := affinityIDOf(e.Key)
	a, ok := t.addrPort(e.Key[4:])
	id, ok2 := affinityIDOf(e.Data)
	if !ok || !ok2 || group != group.group() || group == 0 || id.group() != group || id == group {
		return false
	}
	g := t.groups.byID[group]
	if g == nil {
		g = t.groups.add(group)
	}
	l := g.list(list)
	l.programmed = append(l.programmed, listedEndpoint{a, uint16(id)})
	l.last = max(l.last, uint16(id))
	return true
}

func (t *table) loadTargets(s *set, list int) func([]nfnl.Element) error {
	return func(elements []nfnl.Element) error {
		left := 0
		for _, g := range t.groups.byID {
			if list < len(g.lists) {
				left += len(g.lists[list].programmed)
			}
		}
		for _, e := range elements {
			id, ok := affinityIDOf(e.Key)
			a, ok2 := t.addrPort(e.Data)
			if got, ok3 := t.groups.endpointID(id.group(), list, a); !ok || !ok2 || !ok3 || got != id {
				return errForeignElement(s)
			}
			left--
		}
		if left != 0 {
			return errSchemaMismatch{"its set " + s.name + " lacks an element"}
		}
		return nil
	}
}
