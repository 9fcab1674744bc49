package plan

import (
	"net/netip"
	"slices"
)

// NormalizePrefixes returns ranges in the form that a plan requires: host bits cleared, sorted, without duplicates and without
// ranges contained in another, which are redundant and which the kernel's interval sets reject. Adjacent ranges are not merged.
// It returns nil when there are no ranges, and does not modify the argument.
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
		// A range sorts right after those that contain it, so the last one kept is the only candidate.
		if n := len(kept); n == 0 || !prefixContains(kept[n-1], p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// prefixContains reports whether outer contains all addresses of inner. Both are masked.
func prefixContains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}
