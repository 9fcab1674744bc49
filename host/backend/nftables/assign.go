package nftables

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// assignSlots gives each endpoint as many of the slots 0 to total-1 as its weight. A slot keeps its endpoint while that is within
// its quota, so that a change rewrites only the difference. The order of slots does not matter, as they are drawn at random; for
// those that are chosen by hash see hashSlots. Endpoints are sorted by address and of one family, total is the sum of their
// weights and not 0. A large pool changes in many steps, each of which calls this, so it makes little garbage.
func assignSlots(before packedSlots, endpoints []plan.Endpoint, total int) packedSlots {
	w := endpoints[0].Addr.Addr().BitLen()/8 + 2
	slots := make(packedSlots, 1+total*w)
	slots[0] = byte(w)
	quota := make([]uint16, len(endpoints))
	for i := range endpoints {
		quota[i] = endpoints[i].Weight
	}
	missing := total
	if before.len() > 0 && before[0] == slots[0] {
		find := finder(endpoints)
		for n := range min(before.len(), total) {
			raw := before.raw(n)
			if i, ok := find(raw); ok && quota[i] > 0 {
				quota[i]--
				copy(slots.raw(n), raw)
				missing--
			}
		}
	}
	next := 0
	for n := 0; missing > 0; n++ {
		raw := slots.raw(n)
		if !empty(raw) {
			continue
		}
		for quota[next] == 0 {
			next++
		}
		quota[next]--
		encodeSlot(raw, endpoints[next].Addr)
		missing--
	}
	return slots
}

// finder returns a function that finds the endpoint of a slot, which must be of the same family.
func finder(endpoints []plan.Endpoint) func(raw []byte) (int, bool) {
	if !endpoints[0].Addr.Addr().Is4() {
		return func(raw []byte) (int, bool) {
			a, _ := netip.AddrFromSlice(raw[:16])
			at := netip.AddrPortFrom(a, binary.BigEndian.Uint16(raw[16:]))
			return slices.BinarySearchFunc(endpoints, at, func(m plan.Endpoint, a netip.AddrPort) int { return m.Addr.Compare(a) })
		}
	}
	keys := make([]uint64, len(endpoints)) // compared several times faster
	for i := range endpoints {
		a := endpoints[i].Addr.Addr().As4()
		keys[i] = uint64(binary.BigEndian.Uint32(a[:]))<<16 | uint64(endpoints[i].Addr.Port())
	}
	next := 0 // often the one after the last
	return func(raw []byte) (i int, found bool) {
		key := uint64(binary.BigEndian.Uint32(raw))<<16 | uint64(binary.BigEndian.Uint16(raw[4:]))
		if i, found = next, next < len(keys) && keys[next] == key; !found {
			i, found = slices.BinarySearch(keys, key)
		}
		next = i + 1
		return i, found
	}
}

// repeatWeights returns the endpoints for a slot table chosen by hash, with weights as many times as they fit, and its
// size class.
func repeatWeights(endpoints []plan.Endpoint, total int) ([]plan.Endpoint, int) {
	c := max(sizeClass(total), minHashClass)
	out := slices.Clone(endpoints)
	for i := range out {
		out[i].Weight *= uint16(1 << c / total)
	}
	return out, c
}

// reduceWeights is the inverse: it reduces weights to lowest terms.
func reduceWeights(endpoints []plan.Endpoint) []plan.Endpoint {
	var all uint16
	for _, m := range endpoints {
		for a, b := m.Weight, all; ; a, b = b, a%b {
			if b == 0 {
				all = a
				break
			}
		}
	}
	for i := range endpoints {
		endpoints[i].Weight /= all
	}
	return endpoints
}

// endpointsOf is the inverse of assignSlots: the sorted endpoints, weighted by their number of slots.
func endpointsOf(slots []netip.AddrPort) []plan.Endpoint {
	sorted := slices.Clone(slots)
	slices.SortFunc(sorted, netip.AddrPort.Compare)
	var endpoints []plan.Endpoint
	for _, a := range sorted {
		switch n := len(endpoints); {
		case !a.IsValid():
		case n > 0 && endpoints[n-1].Addr == a:
			if endpoints[n-1].Weight < math.MaxUint16 { // none of ours has as many
				endpoints[n-1].Weight++
			}
		default:
			endpoints = append(endpoints, plan.Endpoint{Addr: a, Weight: 1})
		}
	}
	return endpoints
}
