package nftables

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// packedSlots is a list of slots in memory: one byte for the width of a slot, then the address and port of each, zero
// for an empty slot. It takes a quarter of a []netip.AddrPort, which counts with one per endpoint of the cluster, and
// has no pointers for the garbage collector to follow.
type packedSlots []byte

func pack(slots []netip.AddrPort) packedSlots {
	if len(slots) == 0 {
		return nil
	}
	p := make(packedSlots, 1, 1+len(slots)*widthOf(slots))
	p[0] = byte(widthOf(slots))
	for _, a := range slots {
		p = p.append(a)
	}
	return p
}

func widthOf(slots []netip.AddrPort) int {
	for _, a := range slots {
		if a.IsValid() {
			return a.Addr().BitLen()/8 + 2
		}
	}
	return 6
}

// append appends a slot.
func (p packedSlots) append(a netip.AddrPort) packedSlots {
	var raw [18]byte
	p = append(p, raw[:p[0]]...)
	encodeSlot(p[len(p)-int(p[0]):], a)
	return p
}

// encodeSlot encodes a slot, unless it is empty, into as many bytes as it takes.
func encodeSlot(raw []byte, a netip.AddrPort) {
	switch {
	case !a.IsValid():
		return
	case a.Addr().Is4():
		b := a.Addr().As4()
		copy(raw, b[:])
	default:
		b := a.Addr().As16()
		copy(raw, b[:])
	}
	binary.BigEndian.PutUint16(raw[len(raw)-2:], a.Port())
}

func (p packedSlots) len() int {
	if len(p) == 0 {
		return 0
	}
	return (len(p) - 1) / int(p[0])
}

// raw returns the bytes of a slot, nil beyond the last one.
func (p packedSlots) raw(i int) []byte {
	if i >= p.len() {
		return nil
	}
	w := int(p[0])
	return p[1+i*w : 1+(i+1)*w]
}

// at returns a slot, the zero value for an empty one.
func (p packedSlots) at(i int) netip.AddrPort {
	b := p.raw(i)
	if empty(b) {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(b[:len(b)-2])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[len(b)-2:]))
}

// same reports whether a slot is the same in both.
func (p packedSlots) same(q packedSlots, i int) bool {
	a, b := p.raw(i), q.raw(i)
	return bytes.Equal(a, b) || empty(a) && empty(b)
}

func empty(raw []byte) bool {
	for _, b := range raw {
		if b != 0 {
			return false
		}
	}
	return true
}

// unpack returns the slots as a list, nil if there are none.
func (p packedSlots) unpack() (out []netip.AddrPort) {
	out = slices.Grow(out, p.len())
	for i := range p.len() {
		out = append(out, p.at(i))
	}
	return out
}

// set stores a slot, after empty ones if needed. It returns false if a is not a valid slot.
func (p *packedSlots) set(n int, a netip.AddrPort) bool {
	w := a.Addr().BitLen()/8 + 2
	switch {
	case len(*p) == 0:
		*p = packedSlots{byte(w)}
	case int((*p)[0]) != w:
		return false
	}
	for p.len() <= n {
		*p = p.append(netip.AddrPort{})
	}
	raw := p.raw(n)
	copy(raw, packedSlots{byte(w)}.append(a)[1:])
	return !empty(raw)
}
