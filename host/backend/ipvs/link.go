package ipvs

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addresses is what makes frontends' addresses the node's, so that packets to them come to IPVS.
type addresses interface {
	// list gives the addresses on the link that sluice put there, and those that the node has elsewhere.
	list() (bound, own map[netip.Addr]bool, err error)
	// where tells whether an address that is not bound is the node's now, and will stay.
	where(a netip.Addr) (place, error)
	add(a netip.Addr) error
	del(a netip.Addr) error
	// ensure makes the link, when it has DefaultLink's name and is not there, and brings it up.
	ensure() (made bool, err error)
	close()
}

// DefaultLink is the link that is made for the addresses of frontends.
const DefaultLink = "sluice-ipvs0"

// kubeProxyLink is where kube-proxy has the same addresses, until it is cleaned away.
const kubeProxyLink = "kube-ipvs0"

// noPrefixRoute is one of the marks of addresses that sluice put on a link: see put.
const noPrefixRoute = unix.IFA_F_NOPREFIXROUTE

// link is a real link.
type link struct {
	name  string
	nl    *netlink.Handle
	index int // 0: not there
	dummy bool
	// passing are the addresses on kube-proxy's link: the node's for now, and not its own.
	passing map[netip.Addr]bool
}

func (l *link) close() { l.nl.Close() }

func (l *link) find() error {
	l.index = 0
	found, err := l.nl.LinkByName(l.name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil
	case err != nil:
		return fmt.Errorf("ipvs: find link %s: %w", l.name, err)
	}
	l.index, l.dummy = found.Attrs().Index, found.Type() == "dummy" && l.name == DefaultLink
	return nil
}

func errNoLink(name string) error {
	return fmt.Errorf("ipvs: there is no link %s (ipvs.interface); only %s is made when it is missing", name, DefaultLink)
}

func (l *link) ensure() (made bool, err error) {
	if err := l.find(); err != nil {
		return false, err
	}
	if l.index == 0 {
		if l.name != DefaultLink {
			return false, errNoLink(l.name)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = l.name
		err := l.nl.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: the kernel has no dummy links (CONFIG_DUMMY, modprobe dummy); name another link as ipvs.interface", err)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return false, fmt.Errorf("ipvs: add link %s: %w", l.name, err)
		}
		made = true
		if err := l.find(); err != nil {
			return made, err
		}
	}
	found, err := l.nl.LinkByIndex(l.index)
	if err == nil && found.Attrs().Flags&net.FlagUp == 0 {
		err = l.nl.LinkSetUp(found)
	}
	if err != nil {
		return made, fmt.Errorf("ipvs: bring up link %s: %w", l.name, err)
	}
	return made, nil
}

func (l *link) list() (bound, own map[netip.Addr]bool, err error) {
	bound, own = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	if err := l.find(); err != nil {
		return nil, nil, err
	}
	l.passing = map[netip.Addr]bool{}
	theirs := -1
	if found, err := l.nl.LinkByName(kubeProxyLink); err == nil && l.name != kubeProxyLink {
		theirs = found.Attrs().Index
	}
	list, err := l.nl.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("ipvs: list addresses: %w", err)
	}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		switch ip = ip.Unmap(); {
		case l.index != 0 && a.LinkIndex == l.index && l.put(ip, a):
			bound[ip] = true
		case a.LinkIndex == theirs && !ip.IsLinkLocalUnicast():
			l.passing[ip] = true
		default:
			own[ip] = true
		}
	}
	return bound, own, nil
}

// put tells whether sluice put an address on the link. On one of somebody else's that is one of full length without a
// route for its prefix, as the node's own may be too, and of scope host (IPv4), or deprecated from the start and for
// ever (IPv6), as none is that anybody wants to use.
func (l *link) put(ip netip.Addr, a netlink.Addr) bool {
	ones, bits := a.Mask.Size()
	switch {
	case ones != bits || ip.IsLinkLocalUnicast() || ip.IsLoopback():
		return false
	case l.dummy:
		return true
	case a.Flags&noPrefixRoute == 0:
		return false
	case ip.Is4():
		return a.Scope == unix.RT_SCOPE_HOST
	}
	return a.PreferedLft == 0 && uint32(a.ValidLft) == math.MaxUint32
}

func (l *link) where(a netip.Addr) (place, error) {
	if l.passing[a] {
		return passing, nil
	}
	routes, err := l.nl.RouteGet(a.AsSlice())
	if err != nil {
		return away, nil // no way there
	}
	for _, r := range routes {
		if r.Type == unix.RTN_LOCAL {
			return onNode, nil
		}
	}
	return away, nil
}

func (l *link) addr(a netip.Addr) (*netlink.Dummy, *netlink.Addr) {
	on := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: l.index, Name: l.name}}
	bits := a.BitLen()
	n := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Flags: noPrefixRoute}
	if a.Is6() {
		// Deprecated from the start: the kernel chooses it as the source for nothing that goes elsewhere, not for
		// what is masqueraded either.
		n.Flags |= unix.IFA_F_NODAD
		n.PreferedLft, n.ValidLft = 0, math.MaxUint32
	} else {
		// The kernel does not choose it as the source for what goes elsewhere.
		n.Scope = unix.RT_SCOPE_HOST
	}
	return on, n
}

func (l *link) add(a netip.Addr) error {
	on, n := l.addr(a)
	if err := l.nl.AddrAdd(on, n); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func (l *link) del(a netip.Addr) error {
	on, n := l.addr(a)
	if err := l.nl.AddrDel(on, n); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	return nil
}
