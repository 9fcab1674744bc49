package testnet

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Own makes every address of a range local to the host, so that one server on all addresses answers for thousands of
// Pods. Lab.Route adds the route to them.
func (h *Host) Own(p netip.Prefix) error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("testnet: %s owns %s: find link lo: %w", h.Name, p, err)
	}
	err = h.nl.RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
	})
	if err != nil {
		return fmt.Errorf("testnet: %s owns %s: %w", h.Name, p, err)
	}
	return nil
}
