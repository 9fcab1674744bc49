package kubeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ipvs is what the IPVS mode makes: virtual servers, and a dummy link with their addresses.
type ipvs struct{}

const ipvsLink = "kube-ipvs0"

// server is a virtual server.
type server struct {
	family   uint16 // AF_INET, AF_INET6
	protocol uint16
	addr     netip.Addr
	port     uint16
}

// From linux/ip_vs.h.
const (
	ipvsDelService  = 3
	ipvsGetService  = 4
	ipvsGetDest     = 8
	ipvsAttrService = 1
	ipvsAttrDest    = 2
	ipvsDestActive  = 7
	ipvsSvcFamily   = 1
	ipvsSvcProtocol = 2
	ipvsSvcAddr     = 3
	ipvsSvcPort     = 4
	ipvsSvcFwmark   = 5
	ipvsSvcFlags    = 7
	ipvsFlagSluice  = 0x20 // on the virtual servers of sluice's mode ipvs, which may have taken kube-proxy's over
)

// list gives the link, nil when it is not there, and the virtual servers that are kube-proxy's. Those at addresses of
// its link are; those at another local address, in the range of NodePorts, are when there is such a link.
func (ipvs) list() (netlink.Link, []server, error) {
	link, err := netlink.LinkByName(ipvsLink)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("kube-proxy's leftovers: find link %s: %w", ipvsLink, err)
	case link.Type() != "dummy":
		return nil, nil, nil // of somebody who likes the name
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("kube-proxy's leftovers: list addresses: %w", err)
	}
	on := map[netip.Addr]bool{} // local address: on the link
	for _, a := range all {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addr = addr.Unmap()
			on[addr] = on[addr] || a.LinkIndex == link.Attrs().Index
		}
	}
	servers, err := virtualServers()
	if err != nil {
		return nil, nil, err
	}
	return link, slices.DeleteFunc(servers, func(s server) bool { return !kubeServer(s, on) }), nil
}

// kubeServer tells whether a virtual server is kube-proxy's; on has all local addresses, true for those on its link.
func kubeServer(s server, on map[netip.Addr]bool) bool {
	its, local := on[s.addr]
	return its || local && s.port >= 30000 && s.port <= 32767
}

// ipvsCommand begins a request; nil when IPVS is not in the kernel. Asking for it would load the module.
func ipvsCommand(command uint8, flags int) (*nl.NetlinkRequest, error) {
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err != nil {
		return nil, nil
	}
	family, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: ask for IPVS: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	return req, nil
}

func virtualServers() ([]server, error) {
	req, err := ipvsCommand(ipvsGetService, unix.NLM_F_DUMP)
	if req == nil {
		return nil, err
	}
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: list virtual servers: %w", err)
	}
	var out []server
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		if s, ok := decodeServer(attrs(m[nl.SizeofGenlmsg:])[ipvsAttrService]); ok {
			out = append(out, s)
		}
	}
	return out, nil
}

// decodeServer reads a virtual server; false for those of firewall marks, which kube-proxy has none of.
func decodeServer(b []byte) (server, bool) {
	a := attrs(b)
	family, protocol, addr, port := a[ipvsSvcFamily], a[ipvsSvcProtocol], a[ipvsSvcAddr], a[ipvsSvcPort]
	if flags := a[ipvsSvcFlags]; len(flags) >= 4 && binary.NativeEndian.Uint32(flags)&ipvsFlagSluice != 0 {
		return server{}, false
	}
	if _, marked := a[ipvsSvcFwmark]; marked || len(family) < 2 || len(protocol) < 2 || len(addr) < 16 || len(port) < 2 {
		return server{}, false
	}
	s := server{family: binary.NativeEndian.Uint16(family), protocol: binary.NativeEndian.Uint16(protocol), port: binary.BigEndian.Uint16(port)}
	if s.family == unix.AF_INET {
		s.addr = netip.AddrFrom4([4]byte(addr[:4]))
	} else {
		s.addr = netip.AddrFrom16([16]byte(addr[:16]))
	}
	return s, true
}

// encode is the inverse of decodeServer.
func (s server) encode() *nl.RtAttr {
	addr := make([]byte, 16)
	copy(addr, s.addr.AsSlice())
	nest := nl.NewRtAttr(ipvsAttrService|unix.NLA_F_NESTED, nil)
	nest.AddRtAttr(ipvsSvcFamily, binary.NativeEndian.AppendUint16(nil, s.family))
	nest.AddRtAttr(ipvsSvcProtocol, binary.NativeEndian.AppendUint16(nil, s.protocol))
	nest.AddRtAttr(ipvsSvcAddr, addr)
	nest.AddRtAttr(ipvsSvcPort, binary.BigEndian.AppendUint16(nil, s.port))
	return nest
}

func (v ipvs) find(context.Context) (out []Leftover, err error) {
	link, servers, err := v.list()
	if err != nil || link == nil {
		return nil, err
	}
	out = append(out, Leftover{Where: "IPVS, link " + ipvsLink})
	if len(servers) > 0 {
		out = append(out, Leftover{Where: "IPVS", What: "virtual servers", Count: len(servers)})
	}
	return out, nil
}

func (v ipvs) remove(ctx context.Context) error {
	_, err := v.take(ctx, func(server) (bool, error) { return false, nil })
	return err
}

// take removes the virtual servers that are not to stay, the addresses that only those had, and the link with the last.
func (v ipvs) take(ctx context.Context, stays func(server) (bool, error)) (left int, err error) {
	link, servers, err := v.list()
	if err != nil || link == nil {
		return 0, err
	}
	keep := map[netip.Addr]bool{}
	for _, s := range servers {
		stay, err := stays(s)
		if err == nil && stay {
			left++
			keep[s.addr] = true
			continue
		}
		if err == nil {
			err = s.delete()
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return left, fmt.Errorf("kube-proxy's leftovers: delete virtual server %s: %w", netip.AddrPortFrom(s.addr, s.port), err)
		}
	}
	if left == 0 {
		if err := netlink.LinkDel(link); err != nil {
			return 0, fmt.Errorf("kube-proxy's leftovers: delete link %s: %w", ipvsLink, err)
		}
		return 0, nil
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return left, fmt.Errorf("kube-proxy's leftovers: list addresses of link %s: %w", ipvsLink, err)
	}
	for i, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && keep[addr.Unmap()] {
			continue
		}
		if err := netlink.AddrDel(link, &addrs[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return left, fmt.Errorf("kube-proxy's leftovers: delete address %s of link %s: %w", a.IP, ipvsLink, err)
		}
	}
	return left, nil
}

// delete deletes a virtual server, with its members; their connections end.
func (s server) delete() error {
	req, err := ipvsCommand(ipvsDelService, unix.NLM_F_ACK)
	if err == nil && req != nil {
		req.AddData(s.encode())
		_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	}
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// busy tells whether a virtual server has connections that are open.
func (s server) busy() (bool, error) {
	req, err := ipvsCommand(ipvsGetDest, unix.NLM_F_DUMP)
	if err != nil || req == nil {
		return false, err
	}
	req.AddData(s.encode())
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("list its members: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		active := attrs(attrs(m[nl.SizeofGenlmsg:])[ipvsAttrDest])[ipvsDestActive]
		if len(active) >= 4 && binary.NativeEndian.Uint32(active) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// ipsets are what the iptables rules of the IPVS mode look addresses up in.
type ipsets struct{}

// From linux/netfilter/ipset/ip_set.h.
const (
	ipsetList         = 7 // IPSET_CMD_LIST
	ipsetAttrProtocol = 1
	ipsetAttrName     = 2
	ipsetAttrFlags    = 6
	ipsetNamesOnly    = 1 << 1 // IPSET_FLAG_LIST_SETNAME
	ipsetProtocol     = 6
)

// list asks for names: sets can have as many entries as the cluster has endpoints.
func (ipsets) list() (names []string, err error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_IPSET<<8|ipsetList, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(ipsetAttrProtocol, []byte{ipsetProtocol}))
	req.AddData(nl.NewRtAttr(ipsetAttrFlags|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, ipsetNamesOnly)))
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return nil, nil // not in this kernel
	case err != nil:
		return nil, fmt.Errorf("kube-proxy's leftovers: list ipsets: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		if name := text(attrs(m[nl.SizeofNfgenmsg:])[ipsetAttrName]); isSet(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func (i ipsets) find(context.Context) ([]Leftover, error) {
	names, err := i.list()
	if len(names) == 0 {
		return nil, err
	}
	return []Leftover{{Where: "ipset", What: "sets", Count: len(names)}}, nil
}

func (i ipsets) remove(context.Context) error {
	names, err := i.list()
	for _, name := range names {
		if derr := netlink.IpsetDestroy(name); derr != nil {
			err = errors.Join(err, fmt.Errorf("kube-proxy's leftovers: destroy ipset %s: %w", name, derr))
		}
	}
	return err
}
