package model

import (
	"encoding/binary"
	"net/netip"
)

// AddrList is a compact list of addresses with ports, for lists with an entry for every endpoint of the cluster. An entry takes 6
// bytes if all are IPv4, otherwise 18, compared to 32 of netip.AddrPort, and contains no pointers for the garbage collector to
// follow. The first byte is the size of an entry. Addresses are unmapped and have no zone.
type AddrList string

// PackAddrs returns a list of n addresses.
func PackAddrs(n int, at func(i int) netip.AddrPort) AddrList {
	if n == 0 {
		return ""
	}
	width := 6
	for i := range n {
		if !at(i).Addr().Is4() {
			width = 18
			break
		}
	}
	b := make([]byte, 1, 1+n*width)
	b[0] = byte(width)
	for i := range n {
		if a := at(i); width == 6 {
			v4 := a.Addr().As4()
			b = append(b, v4[:]...)
		} else {
			v6 := a.Addr().As16()
			b = append(b, v6[:]...)
		}
		b = binary.BigEndian.AppendUint16(b, at(i).Port())
	}
	return AddrList(b)
}

// Len returns the number of addresses.
func (l AddrList) Len() int {
	if l == "" {
		return 0
	}
	return (len(l) - 1) / int(l[0])
}

// At returns address i.
func (l AddrList) At(i int) netip.AddrPort {
	w := int(l[0])
	b := l[1+i*w : 1+(i+1)*w]
	port := uint16(b[w-2])<<8 | uint16(b[w-1])
	if w == 6 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{b[0], b[1], b[2], b[3]}), port)
	}
	var v6 [16]byte
	copy(v6[:], b)
	return netip.AddrPortFrom(netip.AddrFrom16(v6).Unmap(), port)
}
