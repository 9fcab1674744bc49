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
type Table struct {
	// ResetTCP is called with TCP connections before their entries are deleted. It makes the data plane answer their next packets with RST,
	// and returns how many it cannot remember. nil: the data plane does so with all packets of unknown TCP connections.
	ResetTCP func(ctx context.Context, list []plan.Connection) (left int, err error)

	shedder shedder
}

// Reset ends the given connections: it deletes their entries. The next packet of a TCP client is answered with RST, that of others is
// balanced like the first one of a new connection. The table is listed once per IP family, streamed.
func (t *Table) Reset(ctx context.Context, resets []plan.Reset) (total plan.ResetCount, err error) {
	wanted, families := map[plan.Reset]bool{}, map[model.Family]bool{}
	for _, r := range resets {
		wanted[r], families[r.Frontend.Family()] = true, true
	}
	var errs []error
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		if !families[f] {
			continue
		}
		var list []picked
		err := listFlows(ctx, f, 0, func(c *flowEntry) {
			if lookUpFlow(wanted, c) {
				list = append(list, pickEntry(c, 0))
			}
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("conntrack: list connections to reset: %w", err))
			continue
		}
		n, _, err := t.end(ctx, f, list)
		total.Connections, total.Uncertain = total.Connections+n.Connections, total.Uncertain+n.Uncertain
		errs = append(errs, err)
	}
	return total, errors.Join(errs...)
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
