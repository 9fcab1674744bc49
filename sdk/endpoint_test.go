package sdk

import (
	"math"
	"math/bits"
	"net/netip"
	"testing"
)

// One bit of an address or port changes half of the bits of its hash, within four standard deviations.
func TestHashesOfCloseAddressesAreUnrelated(t *testing.T) {
	for base, from := range map[string]int{"::ffff:10.244.1.3": 96, "fd00:10:244::1:3": 0} {
		a := Addr{netip.MustParseAddr(base).As16(), 8080}
		changed, n := 0, 0
		compare := func(b Addr) {
			changed += bits.OnesCount32(a.Hash() ^ b.Hash())
			n++
		}
		for bit := from; bit < 128; bit++ {
			b := a
			b.ip[bit/8] ^= 1 << (bit % 8)
			compare(b)
		}
		for bit := range 16 {
			compare(Addr{a.ip, a.port ^ 1<<bit})
		}
		mean, deviation := 16*float64(n), math.Sqrt(8*float64(n))
		if math.Abs(float64(changed)-mean) > 4*deviation {
			t.Errorf("%s: %d bits of %d hashes changed, want %.0f ± %.0f", base, changed, n, mean, 4*deviation)
		}
	}
}
