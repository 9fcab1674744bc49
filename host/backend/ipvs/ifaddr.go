package ipvs

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ownedMetric marks the addresses of sluice, on any link. IFA_RT_PRIORITY (Linux 4.18) is the metric of the route to
// the address's prefix. These addresses have no such route, so the kernel stores and shows the number without using it.
const ownedMetric = 0x5ce00000

// ifAddr is an address of a link.
type ifAddr struct {
	netip.Addr
	prefixLen int
	link      int // index
	metric    uint32
}

// owned reports whether sluice added the address.
func (a ifAddr) owned() bool { return a.metric == ownedMetric && a.prefixLen == a.BitLen() }

// addrSocket is a netlink socket for addresses. vishvananda/netlink cannot do this: its Addr has no metric.
type addrSocket struct{ sockets map[int]*nl.SocketHandle }

func openAddrSocket(at netns.NsHandle) (addrSocket, error) {
	s, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return addrSocket{}, err
	}
	return addrSocket{map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (s addrSocket) close() { s.sockets[unix.NETLINK_ROUTE].Close() }

func (s addrSocket) newRequest(kind, flags int, msg *nl.IfAddrmsg) *nl.NetlinkRequest {
	q := nl.NewNetlinkRequest(kind, flags)
	q.Sockets = s.sockets
	q.AddData(msg)
	return q
}

// maxDumpTries bounds how often a dump that concurrent changes interrupted is repeated.
const maxDumpTries = 5

// list are the addresses of all links.
func (s addrSocket) list() (out []ifAddr, err error) {
	for range maxDumpTries {
		var list [][]byte
		list, err = s.newRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP, nl.NewIfAddrmsg(unix.AF_UNSPEC)).Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			a, err := parseIfAddr(m)
			if err != nil {
				return nil, err
			}
			if a.IsValid() {
				out = append(out, a)
			}
		}
		return out, nil
	}
	return nil, err
}

func parseIfAddr(m []byte) (ifAddr, error) {
	msg := nl.DeserializeIfAddrmsg(m)
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return ifAddr{}, err
	}
	a := ifAddr{prefixLen: int(msg.Prefixlen), link: int(msg.Index)}
	for _, x := range attrs {
		switch x.Attr.Type {
		case unix.IFA_LOCAL:
			a.Addr, _ = netip.AddrFromSlice(x.Value)
		case unix.IFA_ADDRESS: // the peer's if there is IFA_LOCAL
			if !a.IsValid() {
				a.Addr, _ = netip.AddrFromSlice(x.Value)
			}
		case unix.IFA_RT_PRIORITY:
			if len(x.Value) == 4 {
				a.metric = binary.NativeEndian.Uint32(x.Value)
			}
		}
	}
	return a, nil
}

func (s addrSocket) modify(kind, flags int, a netip.Addr, link int) error {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Prefixlen, msg.Index = uint8(a.BitLen()), uint32(link)
	q := s.newRequest(kind, flags|unix.NLM_F_ACK, msg)
	q.AddData(nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()))
	q.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, a.AsSlice()))
	if kind == unix.RTM_NEWADDR {
		bits := uint32(unix.IFA_F_NOPREFIXROUTE)
		if a.Is6() {
			// Deprecated from the start, so that the kernel does not select it as a source address, for masquerading
			// either.
			bits |= unix.IFA_F_NODAD
			life := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: 0, Valid: math.MaxUint32}}
			q.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, life.Serialize()))
		} else {
			// Keeps the kernel from selecting it as a source address for other hosts.
			msg.Scope = unix.RT_SCOPE_HOST
		}
		q.AddData(nl.NewRtAttr(unix.IFA_FLAGS, binary.NativeEndian.AppendUint32(nil, bits)))
		q.AddData(nl.NewRtAttr(unix.IFA_RT_PRIORITY, binary.NativeEndian.AppendUint32(nil, ownedMetric)))
	}
	_, err := q.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (s addrSocket) add(a netip.Addr, link int) error {
	return s.modify(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, a, link)
}

// del deletes an address. A missing address or link is not an error.
func (s addrSocket) del(a netip.Addr, link int) error {
	if err := s.modify(unix.RTM_DELADDR, 0, a, link); !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}
