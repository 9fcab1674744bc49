package rules

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// affinityID identifies an endpoint in a list of an affinity group: the group in the upper 16 bits, the endpoint in the
// lower. An endpoint of zero stands for the group.
type affinityID uint32

const maxAffinityID = 1<<16 - 1 // of a group, and of an endpoint in a list

func groupID(group int) affinityID                   { return affinityID(group) << 16 }
func (id affinityID) endpoint(n uint16) affinityID   { return id.group() | affinityID(n) }
func (id affinityID) group() affinityID              { return id &^ maxAffinityID }
func (id affinityID) room() int                      { return int(id>>16) % affinityRooms }
func (id affinityID) bytes() []byte                  { return native(uint32(id)) }
func affinityIDOf(b []byte) (id affinityID, ok bool) { return affinityID(uint32Of(b)), len(b) >= 4 }

// affinityGroup is a Service port with session affinity. Its clients are recorded under its id, once for each list of
// endpoints that its frontends have: usually one, two if some frontends lead to local endpoints only.
type affinityGroup struct {
	id        affinityID
	names     []model.PortName // one if we wrote its frontends
	frontends int
	lists     []*endpointList
	changed   bool
}

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

type affinityGroups struct {
	byName  map[model.PortName]*affinityGroup
	byID    map[affinityID]*affinityGroup
	inRoom  [affinityRooms]int // groups by room
	last    int                // the group number used last: numbers are not reused soon, because clients are recorded with them
	changed []*affinityGroup
}

func (o *affinityGroups) markChanged(g *affinityGroup) {
	if !g.changed {
		g.changed = true
		o.changed = append(o.changed, g)
	}
}

func (o *affinityGroups) add(id affinityID) *affinityGroup {
	g := &affinityGroup{id: id}
	o.byID[id] = g
	o.inRoom[id.room()]++
	o.last = max(o.last, int(id>>16))
	return g
}

func (o *affinityGroups) remove(g *affinityGroup) {
	delete(o.byID, g.id)
	o.inRoom[g.id.room()]--
	for _, name := range g.names {
		if o.byName[name] == g {
			delete(o.byName, name)
		}
	}
}

func (o *affinityGroups) setName(g *affinityGroup, name model.PortName) {
	o.byName[name] = g
	g.names = append(g.names, name)
}

var errTooManyGroups = errors.New("more than 65,535 Service ports with session affinity")

// create adds a group in a room with as few others as possible.
func (o *affinityGroups) create() (*affinityGroup, error) {
	fewest := slices.Min(o.inRoom[:])
	for _, anyRoom := range []bool{false, true} {
		for i := range maxAffinityID {
			n := (o.last+i)%maxAffinityID + 1
			if id := groupID(n); o.byID[id] == nil && (anyRoom || o.inRoom[id.room()] == fewest) {
				g := o.add(id)
				o.last = n
				return g, nil
			}
		}
	}
	return nil, errTooManyGroups
}

func (g *affinityGroup) list(n int) *endpointList {
	for len(g.lists) <= n {
		g.lists = append(g.lists, &endpointList{})
	}
	return g.lists[n]
}

// endpointID returns the id that clients of an endpoint are recorded with, if the group's list has it in the kernel.
func (o *affinityGroups) endpointID(id affinityID, list int, a netip.AddrPort) (affinityID, bool) {
	g := o.byID[id]
	if g == nil || list >= len(g.lists) {
		return 0, false
	}
	at, ok := g.lists[list].find(a)
	if !ok {
		return 0, false
	}
	return id.endpoint(g.lists[list].programmed[at].id), true
}

// detach removes a frontend that is about to change from its lists.
func (t *table) detach(h *elements) {
	if h == nil || len(h.groups) == 0 {
		return
	}
	g := t.groups.byID[h.groups[0]]
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
func (t *table) attach(h, before *elements, f *plan.Frontend) error {
	g := t.groups.byName[f.Owner]
	if g == nil {
		var err error
		if g, err = t.groups.create(); err != nil {
			return err
		}
		t.groups.setName(g, f.Owner)
	}
	t.groups.markChanged(g)
	g.frontends++
	h.groups = []affinityID{g.id}
	h.learn = []learnChain{{g.id.room(), (f.Affinity + time.Millisecond - 1).Truncate(time.Millisecond)}}
	t.needLearnChain(h.learn[0])
	for l := range scopes {
		endpoints := endpointsOf(h.scopes[l].slots.unpack())
		if len(endpoints) == 0 {
			continue
		}
		endpoints = endpoints[:min(len(endpoints), maxAffinityID)]
		want := make([]netip.AddrPort, len(endpoints))
		for i, m := range endpoints {
			want[i] = m.Addr
		}
		last := -1
		if before != nil && len(before.scopes[l].find) > 0 {
			last = before.scopes[l].find[0].list
		}
		n := g.pickList(want, last)
		g.list(n).wanted = want
		g.list(n).refs++
		find := findChain{n, g.id.room()}
		h.scopes[l].find = []findChain{find}
		t.needFindChain(find)
	}
	return nil
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

// flushList brings a list in the kernel to what is wanted. It commits when the transaction is full. Clients of an endpoint that left stay recorded: the rules find
// out and delete them.
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

func endpointKey(group affinityID, a netip.AddrPort) []byte {
	return appendPort(appendAddr(group.bytes(), a.Addr()), a.Port())
}

func endpointData(a netip.AddrPort) []byte { return appendPort(appendAddr(nil, a.Addr()), a.Port()) }

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

// uint32Of decodes a number in host byte order, zero if b is too short.
func uint32Of(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
