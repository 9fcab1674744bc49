// Package conntrack looks into and changes the kernel's connection table.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Table is the connection table of this network namespace. It implements engine.ConnTable.
type Table struct{}

// Reset deletes the entries of connections through a frontend to a member, and tells how many there were. A TCP peer
// that sends on is then tracked anew, finds another member and is answered by a reset. The kernel is asked for the
// whole table of the family: not for the hot path.
func (Table) Reset(_ context.Context, frontend plan.Key, member netip.AddrPort) (int, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if frontend.Family() == model.IPv6 {
		family = unix.AF_INET6
	}
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, through{frontend, member})
	// An entry that ended by itself between listing and deleting is as good as deleted.
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return int(n), fmt.Errorf("conntrack: delete the entries of %s to %s: %w", frontend, member, err)
	}
	return int(n), nil
}

// Forget deletes the entries of UDP flows through the given frontends that are not to a serving endpoint, those that
// were never translated among them, and tells how many there were. It lists the table once a family.
func (Table) Forget(_ context.Context, stale []plan.Stale, node []netip.Addr) (int, error) {
	var errs []error
	total := 0
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		filter := newElsewhere(stale, node, f)
		if len(filter.address)+len(filter.nodePort) == 0 {
			continue
		}
		family := netlink.InetFamily(unix.AF_INET)
		if f == model.IPv6 {
			family = unix.AF_INET6
		}
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
		total += int(n)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("conntrack: delete stale UDP entries, %s: %w", f, err))
		}
	}
	return total, errors.Join(errs...)
}

// elsewhere matches the UDP entries of frontends whose replies do not come from a serving endpoint.
type elsewhere struct {
	node     []netip.Addr
	address  map[netip.AddrPort][]netip.AddrPort // frontend → serving
	nodePort map[uint16][]netip.AddrPort
}

func newElsewhere(stale []plan.Stale, node []netip.Addr, f model.Family) *elsewhere {
	e := &elsewhere{node: node, address: map[netip.AddrPort][]netip.AddrPort{}, nodePort: map[uint16][]netip.AddrPort{}}
	for _, s := range stale {
		switch {
		case s.Frontend.Protocol != model.UDP || s.Frontend.Family() != f:
		case s.Frontend.IsNodePort():
			e.nodePort[s.Frontend.Port] = s.Serving
		default:
			e.address[netip.AddrPortFrom(s.Frontend.Addr, s.Frontend.Port)] = s.Serving
		}
	}
	return e
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (e *elsewhere) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, ok := netip.AddrFromSlice(f.Forward.DstIP)
	src, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	dst, src = dst.Unmap(), src.Unmap()
	serving, is := e.address[netip.AddrPortFrom(dst, f.Forward.DstPort)]
	if !is {
		if serving, is = e.nodePort[f.Forward.DstPort]; is && !slices.Contains(e.node, dst) {
			return false
		}
	}
	return is && !slices.Contains(serving, netip.AddrPortFrom(src, f.Reverse.SrcPort))
}

// through matches the entries whose original destination is a frontend and whose replies come from a member.
type through struct {
	frontend plan.Key
	member   netip.AddrPort
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (t through) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Forward.Protocol == uint8(t.frontend.Protocol) &&
		f.Forward.DstPort == t.frontend.Port &&
		(t.frontend.IsNodePort() || sameAddr(f.Forward.DstIP, t.frontend.Addr)) &&
		f.Reverse.SrcPort == t.member.Port() &&
		sameAddr(f.Reverse.SrcIP, t.member.Addr())
}

func sameAddr(ip net.IP, a netip.Addr) bool {
	b, ok := netip.AddrFromSlice(ip)
	return ok && b.Unmap() == a.Unmap()
}
