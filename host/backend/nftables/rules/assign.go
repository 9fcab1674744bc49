package rules

import (
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// assignSlots gives each endpoint as many of the slots 0 to total-1 as its weight. A slot keeps its endpoint while that
// is within its quota, so that a change rewrites only the difference. The order of slots does not matter, as they are
// drawn at random; for those that are chosen by hash see hashSlots.
func assignSlots(before []netip.AddrPort, endpoints []plan.Endpoint, total int) []netip.AddrPort {
	slots := make([]netip.AddrPort, total)
	quota := make([]int, len(endpoints))
	for i, m := range endpoints {
		quota[i] = int(m.Weight)
	}
	missing := total
	for i, endpoint := range before[:min(len(before), total)] {
		if !endpoint.IsValid() {
			continue
		}
		m, ok := slices.BinarySearchFunc(endpoints, endpoint, func(m plan.Endpoint, a netip.AddrPort) int { return m.Addr.Compare(a) })
		if ok && quota[m] > 0 {
			quota[m]--
			slots[i] = endpoint
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
		slots[i] = endpoints[next].Addr
		missing--
	}
	return slots
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
