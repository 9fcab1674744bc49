package nftables

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// tries returns the size classes of the tables that a connection draws from, one after the other, until it hits a slot.
func tries(class int) (classes []int) {
	for range drawsOf(class) {
		classes = append(classes, class)
	}
	if class > 1 {
		classes = append(classes, class-1)
	}
	if class > 0 {
		classes = append(classes, 0) // slot 0 always exists
	}
	return classes
}

// hashedSlots returns the slots of a pool with source hash, and their size class.
func hashedSlots(p *plan.Pool) ([]netip.AddrPort, int) {
	total := p.Total()
	endpoints, class := repeatWeights(p.Endpoints, total)
	return hashSlots(endpoints, total*(1<<class/total), class), class
}

// clientOf implements plan.Caps.Client: it does what the rules for source hash do.
func clientOf(p *plan.Pool, from netip.Addr) netip.AddrPort {
	slots, class := hashedSlots(p)
	for i, c := range tries(class) {
		if n := scale(jhash(from.AsSlice(), uint32(i+1)), 1<<c); n < len(slots) {
			return slots[n]
		}
	}
	return slots[0]
}

// scale maps a hash to a number below n, as the kernel's reciprocal_scale does.
func scale(h uint32, n int) int { return int(uint64(h) * uint64(n) >> 32) }

// jhash is the hash of nft's expression jhash: Bob Jenkins' lookup3, of 4 or 16 bytes.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	if len(key) > 12 {
		a, b, c = a+binary.NativeEndian.Uint32(key), b+binary.NativeEndian.Uint32(key[4:]), c+binary.NativeEndian.Uint32(key[8:])
		for _, turn := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
			a = (a - c) ^ bits.RotateLeft32(c, turn[0])
			c += b
			b = (b - a) ^ bits.RotateLeft32(a, turn[1])
			a += c
			c = (c - b) ^ bits.RotateLeft32(b, turn[2])
			b += a
		}
		key = key[12:]
	}
	a += binary.LittleEndian.Uint32(key) // the rest is read by bytes
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
