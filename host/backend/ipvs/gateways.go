package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxRoutes bounds how many routes of a family Gateways reads.
const maxRoutes = 50_000

// Gateways returns the gateways of the routes in the main table of this network namespace, sorted. If the address of a Service
// was one of them, adding it would cut off what is behind it. With an error, they are those that could be read.
func Gateways() ([]netip.Addr, error) {
	found := map[netip.Addr]bool{}
	add := func(ip net.IP) {
		if a, ok := netip.AddrFromSlice(ip); ok && !a.IsUnspecified() {
			found[a.Unmap()] = true
		}
	}
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		n := 0
		err := netlink.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			add(r.Gw)
			if via, ok := r.Via.(*netlink.Via); ok {
				add(via.Addr)
			}
			for _, hop := range r.MultiPath {
				add(hop.Gw)
			}
			n++
			return n < maxRoutes
		})
		if err == nil && n == maxRoutes {
			err = fmt.Errorf("only the first %d are read", maxRoutes)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list routes: %w", err))
		}
	}
	return slices.SortedFunc(maps.Keys(found), netip.Addr.Compare), errors.Join(errs...)
}
