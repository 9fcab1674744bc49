package rules

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// owner is a Service port with session affinity. Its clients are noted under its id, for every list of members that
// its frontends have: mostly there is one, two where some paths lead to local members only.
type owner struct {
	id        uint32
	frontends int // that have it
	lists     []*memberList
	touched   bool
}

// memberList is the members of one or more of an owner's lanes. An owner's lists differ.
type memberList struct {
	refs     int              // lanes that use it
	want     []netip.AddrPort // sorted
	inKernel []netip.AddrPort // sorted
}

type owners struct {
	byName  map[model.PortName]*owner
	byID    map[uint32]*owner
	last    uint32 // the highest id ever seen; ids do not come back soon, for the sake of old clients
	touched []*owner
}

func (o *owners) touch(w *owner) {
	if !w.touched {
		w.touched = true
		o.touched = append(o.touched, w)
	}
}

func (o *owners) add(id uint32) *owner {
	w := &owner{id: id}
	o.byID[id] = w
	o.last = max(o.last, id)
	return w
}

func (w *owner) list(n int) *memberList {
	for len(w.lists) <= n {
		w.lists = append(w.lists, &memberList{})
	}
	return w.lists[n]
}

// release takes a frontend that is about to change off its lists.
func (t *table) release(h *held) {
	if h == nil || len(h.affine) == 0 {
		return
	}
	w := t.owners.byID[h.affine[0].id]
	if w == nil {
		return
	}
	t.owners.touch(w)
	w.frontends--
	for l := range lanes {
		for _, v := range h.lanes[l].sticky {
			w.list(v.list).refs--
		}
	}
}

// stick gives a frontend its owner's id and its lanes their lists. All frontends of the owner that change have been
// released, so that a list whose members change stays the same list, with its clients.
func (t *table) stick(h, before *held, f *plan.Frontend) {
	w := t.owners.byName[f.Owner]
	if w == nil {
		w = t.owners.add(t.owners.last + 1)
		t.owners.byName[f.Owner] = w
	}
	t.owners.touch(w)
	w.frontends++
	h.affine = []affine{{(f.Affinity + time.Millisecond - 1).Truncate(time.Millisecond), w.id}}
	for l := range lanes {
		members := membersOf(h.lanes[l].slots.unpack(nil))
		if len(members) == 0 {
			continue
		}
		want := make([]netip.AddrPort, len(members))
		for i, m := range members {
			want[i] = m.Addr
		}
		last := -1
		if before != nil && len(before.lanes[l].sticky) > 0 {
			last = before.lanes[l].sticky[0].list
		}
		n := w.choose(want, last)
		t.need(t.schema.membersOf(n))
		t.need(t.affinityOf(n))
		w.list(n).want = want
		w.list(n).refs++
		h.lanes[l].sticky = []sticky{{n, w.id}}
	}
}

// choose finds the list for these members: one that is the same, or else a free one: the last one used, one that held
// the same, one that held nothing.
func (w *owner) choose(want []netip.AddrPort, last int) int {
	free := func(n int) bool { return n >= len(w.lists) || w.lists[n].refs == 0 }
	for n, l := range w.lists {
		if l.refs > 0 && slices.Equal(l.want, want) {
			return n
		}
	}
	if last >= 0 && free(last) {
		return last
	}
	for n, l := range w.lists {
		if free(n) && slices.Equal(l.inKernel, want) {
			return n
		}
	}
	for n := 0; ; n++ {
		if free(n) && (n >= len(w.lists) || len(w.lists[n].inKernel) == 0) {
			return n
		}
	}
}

// settleOwners writes the lists that changed. It tells whether one lost a member, so that clients may have to go.
func (t *table) settleOwners(x *tx) (lost bool) {
	for _, w := range t.owners.touched {
		w.touched = false
		for n, l := range w.lists {
			if l.refs <= 0 {
				l.want = nil
			}
			for _, a := range l.inKernel {
				if _, ok := slices.BinarySearchFunc(l.want, a, netip.AddrPort.Compare); !ok {
					lost = true
				}
			}
			changeList(x, l.inKernel, l.want, func(a netip.AddrPort) (*set, []nfnl.Element) {
				key := appendPort(appendAddr(native(w.id), a.Addr()), a.Port())
				return t.schema.membersOf(n), []nfnl.Element{{Key: key}}
			})
			l.inKernel = l.want
		}
		if w.frontends <= 0 {
			delete(t.owners.byID, w.id)
			maps.DeleteFunc(t.owners.byName, func(_ model.PortName, o *owner) bool { return o == w })
		}
	}
	t.owners.touched = t.owners.touched[:0]
	return lost
}

// adoptOwners finds out which ids belong to whom. An id that belongs to nobody loses its members at the next commit.
func (t *table) adoptOwners() {
	for k, h := range t.frontends {
		name, _, _, ok := parseComment(h.comment, k.Protocol)
		if !ok || len(h.affine) == 0 {
			continue
		}
		id := slices.MinFunc(h.affine, func(a, b affine) int { return cmp.Compare(a.id, b.id) }).id
		w := t.owners.byID[id]
		if w == nil {
			w = t.owners.add(id)
		}
		// Should an owner have two ids, the lower one stays.
		if o := t.owners.byName[name]; o == nil || id < o.id {
			t.owners.byName[name] = w
		}
	}
	for _, w := range t.owners.byID {
		t.owners.touch(w)
		for _, l := range w.lists {
			slices.SortFunc(l.inKernel, netip.AddrPort.Compare)
		}
	}
}

func (t *table) loadMembers(s *set, list int) func([]nfnl.Element) error {
	return func(elements []nfnl.Element) error {
		for _, e := range elements {
			if len(e.Key) < 8+t.addr.bytes {
				return errElement(s)
			}
			a, ok := t.addrPort(e.Key[4:])
			if !ok {
				return errElement(s)
			}
			w := t.owners.byID[idOf(e.Key)]
			if w == nil {
				w = t.owners.add(idOf(e.Key))
			}
			l := w.list(list)
			l.inKernel = append(l.inKernel, a)
		}
		return nil
	}
}

func idOf(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
