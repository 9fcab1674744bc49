// Package conntrack looks into and changes the kernel's connection table.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Table is the connection table of this network namespace. It implements engine.ConnTable.
type Table struct{}

// Reset deletes the entries of connections through frontends to members, and tells how many there were. A TCP peer that
// sends on is then tracked anew, finds another member and is answered by a reset. The table is listed once a family.
func (Table) Reset(_ context.Context, resets []plan.Reset) (int, error) {
	list := map[model.Family]resetFilter{model.IPv4: {}, model.IPv6: {}}
	for _, r := range resets {
		list[r.Frontend.Family()][r] = true
	}
	return deleteMatching(func(f model.Family) (netlink.CustomConntrackFilter, bool) { return list[f], len(list[f]) > 0 })
}

// DeleteStaleUDP deletes the entries of UDP flows through the given frontends that are not to a serving endpoint, those that
// were never translated among them, and tells how many there were. It lists the table once a family.
func (Table) DeleteStaleUDP(_ context.Context, stale []plan.Stale, node []netip.Addr) (int, error) {
	return deleteMatching(func(f model.Family) (netlink.CustomConntrackFilter, bool) {
		e := newStaleFilter(stale, node, f)
		return e, len(e.byAddr)+len(e.byNodePort) > 0
	})
}

// deleteMatching deletes what matches in each family that there is something to match in.
func deleteMatching(filter func(model.Family) (netlink.CustomConntrackFilter, bool)) (int, error) {
	var errs []error
	total := 0
	for f, family := range map[model.Family]netlink.InetFamily{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6} {
		match, any := filter(f)
		if !any {
			continue
		}
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, match)
		total += int(n)
		// An entry that ended by itself between listing and deleting is as good as deleted.
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("conntrack: delete entries, %s: %w", f, err))
		}
	}
	return total, errors.Join(errs...)
}

// staleFilter matches the UDP entries of frontends whose replies do not come from a serving endpoint.
type staleFilter struct {
	nodeAddrs  []netip.Addr
	byAddr     map[netip.AddrPort][]netip.AddrPort // frontend → serving
	byNodePort map[uint16][]netip.AddrPort
}

func newStaleFilter(stale []plan.Stale, node []netip.Addr, f model.Family) *staleFilter {
	e := &staleFilter{nodeAddrs: node, byAddr: map[netip.AddrPort][]netip.AddrPort{}, byNodePort: map[uint16][]netip.AddrPort{}}
	for _, s := range stale {
		switch {
		case s.Frontend.Protocol != model.UDP || s.Frontend.Family() != f:
		case s.Frontend.IsNodePort():
			e.byNodePort[s.Frontend.Port] = s.Serving
		default:
			e.byAddr[netip.AddrPortFrom(s.Frontend.Addr, s.Frontend.Port)] = s.Serving
		}
	}
	return e
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (e *staleFilter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, ok := netip.AddrFromSlice(f.Forward.DstIP)
	src, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	dst, src = dst.Unmap(), src.Unmap()
	serving, is := e.byAddr[netip.AddrPortFrom(dst, f.Forward.DstPort)]
	if !is {
		if serving, is = e.byNodePort[f.Forward.DstPort]; is && !slices.Contains(e.nodeAddrs, dst) {
			return false
		}
	}
	return is && !slices.Contains(serving, netip.AddrPortFrom(src, f.Reverse.SrcPort))
}

// resetFilter matches the entries whose original destination is a frontend and whose replies come from a member.
type resetFilter map[plan.Reset]bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (t resetFilter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	dst, ok := netip.AddrFromSlice(f.Forward.DstIP)
	src, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	r := plan.Reset{
		Frontend: plan.Key{Addr: dst.Unmap(), Port: f.Forward.DstPort, Protocol: model.Protocol(f.Forward.Protocol)},
		Member:   netip.AddrPortFrom(src.Unmap(), f.Reverse.SrcPort),
	}
	if t[r] {
		return true
	}
	if r.Frontend.Addr = netip.IPv4Unspecified(); dst.Unmap().Is6() { // by NodePort
		r.Frontend.Addr = netip.IPv6Unspecified()
	}
	return t[r]
}
