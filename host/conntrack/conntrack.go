// Package conntrack deletes entries of the kernel's connection table.
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

// Table is the conntrack table of this network namespace. It implements engine.ConnTable, and engine.ConnShedder.
type Table struct{ shedder shedder }

// Reset deletes the entries of the given connections and returns their number. The next packet of a TCP client creates a
// new entry, reaches another endpoint and is answered with RST. The table is listed once per IP family.
func (Table) Reset(_ context.Context, resets []plan.Reset) (int, error) {
	filters := map[model.Family]resetFilter{model.IPv4: {}, model.IPv6: {}}
	for _, r := range resets {
		filters[r.Frontend.Family()][r] = true
	}
	return deleteMatching(func(f model.Family) (netlink.CustomConntrackFilter, bool) { return filters[f], len(filters[f]) > 0 })
}

// DeleteStaleUDP deletes the entries of UDP flows through the given frontends whose replies do not come from a serving
// endpoint, including flows that were never translated, and returns their number. nodeAddrs are the addresses that serve
// NodePorts. The table is listed once per IP family.
func (Table) DeleteStaleUDP(_ context.Context, stale []plan.StaleUDPFlows, nodeAddrs []netip.Addr) (int, error) {
	return deleteMatching(func(f model.Family) (netlink.CustomConntrackFilter, bool) {
		s := newStaleFilter(stale, nodeAddrs, f)
		return s, len(s.byAddr)+len(s.byNodePort) > 0
	})
}

// deleteMatching deletes the entries that match the filter of their family. filter reports whether a family has one.
func deleteMatching(filter func(model.Family) (netlink.CustomConntrackFilter, bool)) (int, error) {
	var errs []error
	total := 0
	for f, family := range map[model.Family]netlink.InetFamily{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6} {
		match, ok := filter(f)
		if !ok {
			continue
		}
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, match)
		total += int(n)
		// An entry that expired between listing and deletion counts as deleted.
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("conntrack: delete entries, %s: %w", f, err))
		}
	}
	return total, errors.Join(errs...)
}

// staleFilter matches the UDP entries of frontends whose replies do not come from a serving endpoint (host/RULES.md,
// rule 38).
type staleFilter struct {
	nodeAddrs  []netip.Addr
	byAddr     map[netip.AddrPort][]netip.AddrPort // frontend → serving endpoints
	byNodePort map[uint16][]netip.AddrPort
}

func newStaleFilter(stale []plan.StaleUDPFlows, nodeAddrs []netip.Addr, f model.Family) *staleFilter {
	s := &staleFilter{nodeAddrs: nodeAddrs, byAddr: map[netip.AddrPort][]netip.AddrPort{}, byNodePort: map[uint16][]netip.AddrPort{}}
	for _, flows := range stale {
		switch key := flows.Frontend; {
		case key.Protocol != model.UDP || key.Family() != f:
		case key.IsNodePort():
			s.byNodePort[key.Port] = flows.Serving
		default:
			s.byAddr[netip.AddrPortFrom(key.Addr, key.Port)] = flows.Serving
		}
	}
	return s
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s *staleFilter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, from, ok := originalAndReplyFrom(f)
	if !ok {
		return false
	}
	serving, matches := s.byAddr[to]
	if !matches {
		if serving, matches = s.byNodePort[to.Port()]; matches && !slices.Contains(s.nodeAddrs, to.Addr()) {
			return false
		}
	}
	return matches && !slices.Contains(serving, from)
}

// originalAndReplyFrom returns the original destination of a flow and the source of its replies.
func originalAndReplyFrom(f *netlink.ConntrackFlow) (to, from netip.AddrPort, ok bool) {
	dst, dstOK := netip.AddrFromSlice(f.Forward.DstIP)
	src, srcOK := netip.AddrFromSlice(f.Reverse.SrcIP)
	return netip.AddrPortFrom(dst.Unmap(), f.Forward.DstPort), netip.AddrPortFrom(src.Unmap(), f.Reverse.SrcPort), dstOK && srcOK
}

// resetFilter matches the entries whose original destination is a frontend and whose replies come from an endpoint.
type resetFilter map[plan.Reset]bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (t resetFilter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	to, from, ok := originalAndReplyFrom(f)
	if !ok {
		return false
	}
	r := plan.Reset{
		Frontend: plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: model.Protocol(f.Forward.Protocol)},
		Endpoint: from,
	}
	if t[r] {
		return true
	}
	if r.Frontend.Addr = netip.IPv4Unspecified(); to.Addr().Is6() { // NodePort frontends have the unspecified address
		r.Frontend.Addr = netip.IPv6Unspecified()
	}
	return t[r]
}
