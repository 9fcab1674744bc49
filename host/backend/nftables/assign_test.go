package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

func randomEndpoints(r *rand.Rand) []plan.Endpoint { return randomEndpointsOf(r, "10.0.%d.%d:80") }

func randomEndpointsOf(r *rand.Rand, address string) []plan.Endpoint {
	var list []plan.Endpoint
	for i := range 12 {
		if r.IntN(2) == 0 || len(list) == 0 && i == 11 {
			a := netip.MustParseAddrPort(fmt.Sprintf(address, 1+r.IntN(2), i))
			list = append(list, plan.Endpoint{Addr: a, Weight: uint16(1 + r.IntN(9))})
		}
	}
	slices.SortFunc(list, func(a, b plan.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return list
}

func totalWeight(list []plan.Endpoint) int { p := plan.Pool{Endpoints: list}; return p.Total() }

func TestAssignSlotsRewritesOnlyTheDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var slots []netip.AddrPort
	for step := range 6000 {
		address := "10.0.%d.%d:80"
		if step >= 3000 {
			address = "[2001:db8::%d:%d]:80" // the first one has slots of the other family
		}
		endpoints := randomEndpointsOf(r, address)
		want := totalWeight(endpoints)
		before := slots
		if r.IntN(10) == 0 && len(before) > 0 { // a slot is lost
			before = slices.Clone(before)
			before[r.IntN(len(before))] = netip.AddrPort{}
		}
		packed := assignSlots(pack(before), endpoints, want)
		slots = packed.unpack()
		if got := endpointsOf(slots); !slices.Equal(got, endpoints) {
			t.Fatalf("step %d: endpoints %v, want %v", step, got, endpoints)
		}
		if len(slots) != want {
			t.Fatalf("step %d: %d slots, want %d", step, len(slots), want)
		}
		// All slots in [0, want) have to be written except those of an endpoint within its quota.
		var current []netip.AddrPort
		for i := range min(len(before), want) {
			if before[i].IsValid() {
				current = append(current, before[i])
			}
		}
		must := want
		for _, m := range endpointsOf(current) {
			i := slices.IndexFunc(endpoints, func(n plan.Endpoint) bool { return n.Addr == m.Addr })
			if i >= 0 {
				must -= int(min(m.Weight, endpoints[i].Weight))
			}
		}
		written := 0
		for i := range want {
			if i >= len(before) || before[i] != slots[i] {
				written++
			}
		}
		if written != must {
			t.Fatalf("step %d: %d slots written, %d needed", step, written, must)
		}
	}
}

func TestSizeClassIsTheNextPowerOfTwo(t *testing.T) {
	for n, want := range map[int]int{1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 1000: 10, 1024: 10, 1025: 11, 65536: 16} {
		if got := sizeClass(n); got != want {
			t.Errorf("class(%d) = %d, want %d", n, got, want)
		}
	}
}
