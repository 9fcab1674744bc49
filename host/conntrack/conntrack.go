// Package conntrack looks into and changes the kernel's connection table.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

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
