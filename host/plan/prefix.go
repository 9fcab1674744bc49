package plan

import (
	"net/netip"
	"slices"
)

// NormalizePrefixes brings ranges into the one form that a plan holds: host bits cleared, sorted, without duplicates and
// without ranges that lie inside another, which mean nothing and which the kernel's interval sets refuse. Adjacent
// ranges are not joined. Nil when there are none; the argument is not changed.
func NormalizePrefixes(list []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		if p.IsValid() {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	kept := out[:0]
	for _, p := range out {
		// A range sorts right after those that hold it, so the last one kept is the only candidate.
		if n := len(kept); n == 0 || !holds(kept[n-1], p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// holds tells whether every address of inner is in outer. Both are masked.
func holds(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}
