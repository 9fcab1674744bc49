package rules

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/sluice-proxy/sluice/host/plan"
)

// frontendKey is the key of a side's sets.
func frontendKey(dst []byte, k plan.Key) []byte {
	if !k.IsNodePort() {
		dst = appendAddr(dst, k.Addr)
	}
	dst = append(dst, byte(k.Protocol), 0, 0, 0)
	return appendPort(dst, k.Port)
}

func appendAddr(dst []byte, a netip.Addr) []byte {
	if a.Is4() {
		b := a.As4()
		return append(dst, b[:]...)
	}
	b := a.As16()
	return append(dst, b[:]...)
}

func appendPort(dst []byte, p uint16) []byte {
	return append(binary.BigEndian.AppendUint16(dst, p), 0, 0)
}

func sideOf(k plan.Key) side {
	if k.IsNodePort() {
		return byNodePort
	}
	return byAddress
}

var nothing = &held{}

// change writes into x what leads from what is held of a frontend to what is wanted; nil is nothing. It commits in
// between when the transaction is full, in an order in which no connection finds a frontend without slots.
func (t *table) change(x *tx, k plan.Key, now, want *held) error {
	if now == nil {
		now = nothing
	}
	gone := want == nil
	if gone {
		want = nothing
		x.owner = now.owner()
	} else {
		x.owner = want.owner()
	}
	key := frontendKey(make([]byte, 0, 64), k)
	slots := func(has bool) error {
		for l := range lanes {
			if has == (want.lanes[l].slots.len() > 0) {
				if err := t.changeSlots(x, sideOf(k), l, key, now.lanes[l].slots, want.lanes[l].slots); err != nil {
					return err
				}
			}
		}
		return nil
	}
	// What is to forward has its slots before it is said to, and what no longer does keeps them until that is said.
	if err := slots(true); err != nil {
		return err
	}
	t.changeEntry(x, k, key, now, want)
	if err := slots(false); err != nil {
		return err
	}
	if gone {
		delete(t.frontends, k)
	} else {
		t.frontends[k] = want
	}
	return nil
}

// changeEntry is everything but the slots.
func (t *table) changeEntry(x *tx, k plan.Key, key []byte, now, want *held) {
	ss := &t.sides[sideOf(k)]
	for l := range lanes {
		ls := &ss.lanes[l]
		had, has := now.lanes[l].sets, want.lanes[l].sets
		for c := range ls.totals {
			if c <= usual && had&(1<<c) == 0 && has&(1<<c) != 0 {
				t.foresee(ls)
			}
			x.toggle(ls.totals[c], key, had&(1<<c) != 0, has&(1<<c) != 0)
		}
		x.toggle(ls.rejected, key, had&rejectedBit != 0, has&rejectedBit != 0)
		x.toggle(ls.dropped, key, had&droppedBit != 0, has&droppedBit != 0)
		x.toggle(ls.balanced, key, had&balancedBit != 0, has&balancedBit != 0)
		t.changeMark(x, ls, key, now.lanes[l].mark, want.lanes[l].mark)
	}
	x.toggle(ss.split, key, now.split, want.split)
	for m := plan.MasqueradeOutside; m <= plan.MasqueradeFromNode; m++ {
		x.toggle(ss.masq[m], key, now.masq&(1<<m) != 0, want.masq&(1<<m) != 0)
	}
	changeList(x, now.affine, want.affine, func(a affine) (*set, []nfnl.Element) {
		return t.affineOf(sideOf(k), a.timeout), []nfnl.Element{{Key: key, Data: native(a.id)}}
	})
	for l := range lanes {
		changeList(x, now.lanes[l].sticky, want.lanes[l].sticky, func(v sticky) (*set, []nfnl.Element) {
			return t.stickyOf(sideOf(k), l, v.list), []nfnl.Element{{Key: key, Data: native(v.id)}}
		})
	}
	t.changeRanges(x, ss, key, now, want)
	if now.listed && (!want.listed || now.comment != want.comment) {
		x.del(ss.frontends, nfnl.Element{Key: key})
	}
	if want.listed && (!now.listed || now.comment != want.comment) {
		x.add(ss.frontends, nfnl.Element{Key: key, Comment: want.comment})
	}
	t.refer(x, k, now, -1)
	t.refer(x, k, want, 1)
}

func (x *tx) toggle(s *set, key []byte, had, has bool) {
	switch {
	case had && !has:
		x.del(s, nfnl.Element{Key: key})
	case has && !had:
		x.add(s, nfnl.Element{Key: key})
	}
}

// refer counts a frontend for its address.
func (t *table) refer(x *tx, k plan.Key, h *held, by int32) {
	if !h.listed || k.IsNodePort() {
		return
	}
	switch _, kind, _, ok := parseComment(h.comment, k.Protocol); {
	case ok && kind == plan.ClusterIP:
		t.clusterAddrs.change(x, k.Addr, by)
	case ok:
		t.otherAddrs.change(x, k.Addr, by)
	}
}

func (t *table) changeRanges(x *tx, ss *sideSets, key []byte, now, want *held) {
	changeList(x, now.ranges, want.ranges, func(p netip.Prefix) (*set, []nfnl.Element) {
		return ss.ranges, []nfnl.Element{rangeElement(key, p)}
	})
	if want.guarded {
		t.need(ss.ranges)
	}
	x.toggle(ss.guarded, key, now.guarded, want.guarded)
}

func rangeElement(key []byte, p netip.Prefix) nfnl.Element {
	from := appendAddr(slices.Clone(key), p.Addr())
	to := appendAddr(slices.Clone(key), lastOf(p))
	return nfnl.Element{Key: from, KeyEnd: to}
}

// lastOf is the last address of a masked range.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// changeSlots writes the slots that differ; a slot that changes its member goes and comes in one transaction.
func (t *table) changeSlots(x *tx, i side, lane int, key []byte, now, want packed) error {
	m := t.sides[i].lanes[lane].slots
	if t.companion != nil {
		t.changeMembers(x, now, want)
		return nil
	}
	var data [20]byte
	for n := range max(now.len(), want.len()) {
		if now.same(want, n) {
			continue
		}
		had, has := now.at(n), want.at(n)
		k := binary.NativeEndian.AppendUint32(key, uint32(n))
		if had.IsValid() {
			x.del(m, nfnl.Element{Key: k})
			t.hairpins.change(x, had.Addr(), -1)
		}
		if has.IsValid() {
			x.add(m, nfnl.Element{Key: k, Data: appendPort(appendAddr(data[:0], has.Addr()), has.Port())})
			t.hairpins.change(x, has.Addr(), 1)
		}
		if x.full() {
			if err := x.commit(); err != nil {
				return err
			}
		}
	}
	return nil
}
