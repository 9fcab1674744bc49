package planner

import (
	"cmp"
	"net/netip"
)

// drainingSince updates since when endpoints drain, Unix milliseconds; nil: none does.
func drainingSince(before map[netip.AddrPort]int64, now []netip.AddrPort, at int64) map[netip.AddrPort]int64 {
	if len(now) == 0 {
		return nil
	}
	out := make(map[netip.AddrPort]int64, len(now))
	for _, a := range now {
		out[a] = cmp.Or(before[a], at)
	}
	return out
}
