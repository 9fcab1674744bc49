package rules

import (
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// assignSlots gives each endpoint as many of the slots 0 to total-1 as its weight. A slot keeps its endpoint while that
// is within its quota, so that a change rewrites only the difference. The order of slots does not matter, as they are
// drawn at random.
func assignSlots(before []netip.AddrPort, members []plan.Endpoint, total int) []netip.AddrPort {
	slots := make([]netip.AddrPort, total)
	quota := make([]int, len(members))
	for i, m := range members {
		quota[i] = int(m.Weight)
	}
	missing := total
	for i, held := range before[:min(len(before), total)] {
		if !held.IsValid() {
			continue
		}
		m, ok := slices.BinarySearchFunc(members, held, func(m plan.Endpoint, a netip.AddrPort) int { return m.Addr.Compare(a) })
		if ok && quota[m] > 0 {
			quota[m]--
			slots[i] = held
			missing--
		}
	}
	next := 0
	for i := 0; missing > 0; i++ {
		if slots[i].IsValid() {
			continue
		}
		for quota[next] == 0 {
			next++
		}
		quota[next]--
		slots[i] = members[next].Addr
		missing--
	}
	return slots
}

// repeatWeights returns the endpoints for a slot table chosen by hash, with weights as many times as they fit, and its
// size class.
func repeatWeights(members []plan.Endpoint, total int) ([]plan.Endpoint, int) {
	c := max(sizeClass(total), minHashClass)
	out := slices.Clone(members)
	for i := range out {
		out[i].Weight *= uint16(1 << c / total)
	}
	return out, c
}

// reduceWeights is the inverse: it reduces weights to lowest terms.
func reduceWeights(members []plan.Endpoint) []plan.Endpoint {
	var all uint16
	for _, m := range members {
		for a, b := m.Weight, all; ; a, b = b, a%b {
			if b == 0 {
				all = a
				break
			}
		}
	}
	for i := range members {
		members[i].Weight /= all
	}
	return members
}

// endpointsOf is the inverse of assignSlots: the sorted endpoints, weighted by their number of slots.
func endpointsOf(slots []netip.AddrPort) []plan.Endpoint {
	sorted := slices.Clone(slots)
	slices.SortFunc(sorted, netip.AddrPort.Compare)
	var members []plan.Endpoint
	for _, a := range sorted {
		switch n := len(members); {
		case !a.IsValid():
		case n > 0 && members[n-1].Addr == a:
			if members[n-1].Weight < math.MaxUint16 { // none of ours has as many
				members[n-1].Weight++
			}
		default:
			members = append(members, plan.Endpoint{Addr: a, Weight: 1})
		}
	}
	return members
}
