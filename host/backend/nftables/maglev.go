package nftables

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// hashSlots gives each endpoint as many of total slots as its weight, for a slot table of 1<<class slots that is chosen by a hash
// of the client's address. total is the sum of the weights. The slots depend on endpoints and weights alone, so every node has
// the same, whatever it had before.
//
// It is the algorithm of Maglev (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016,
// section 3.4): each endpoint has a permutation of the slots, and in turns, endpoints take the next one of theirs that is free.
// Weights are the frequency of turns. A power of 2 takes the place of the paper's prime: any odd skip generates a permutation of
// it. Slots from total on stay empty; a client that hits one tries another hash.
func hashSlots(endpoints []plan.Endpoint, total, class int) []netip.AddrPort {
	slots := make([]netip.AddrPort, total)
	permutations := make([]permutation, len(endpoints))
	most := 0
	for i := range endpoints {
		permutations[i] = permutationOf(endpoints[i].Addr)
		most = max(most, int(endpoints[i].Weight))
	}
	mask := uint32(1)<<class - 1
	for round := 1; round <= most; round++ {
		for i := range endpoints {
			p, weight := &permutations[i], int(endpoints[i].Weight)
			if p.taken*most >= round*weight { // it has had its turns up to this round
				continue
			}
			at := p.next & mask
			for int(at) >= total || slots[at].IsValid() {
				at = (at + p.skip) & mask
			}
			slots[at] = endpoints[i].Addr
			p.next, p.taken = at+p.skip, p.taken+1
		}
	}
	return slots
}

// permutation is the order in which an endpoint takes slots, and how far it has got.
type permutation struct {
	next, skip uint32 // modulo the size of the table
	taken      int
}

// permutationOf returns the permutation of an endpoint: FNV-1a of its address and port, with the finalizer of MurmurHash3.
func permutationOf(a netip.AddrPort) permutation {
	h := uint64(14695981039346656037)
	for _, b := range a.Addr().As16() {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h ^= uint64(a.Port()) * 0x9E3779B97F4A7C15
	h = (h ^ h>>33) * 0xFF51AFD7ED558CCD
	h = (h ^ h>>33) * 0xC4CEB9FE1A85EC53
	h ^= h >> 33
	return permutation{next: uint32(h), skip: uint32(h>>32) | 1}
}
