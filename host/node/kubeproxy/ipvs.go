package kubeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ipvs are the virtual servers of its IPVS mode, and the dummy link with their addresses.
type ipvs struct{ nodePorts PortRange }

const ipvsLink = "kube-ipvs0"

// virtualServer is an IPVS virtual server.
type virtualServer struct {
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
	ipvsDestIdle    = 8 // those that one side has closed, or both
	ipvsSvcFamily   = 1
	ipvsSvcProtocol = 2
	ipvsSvcAddr     = 3
	ipvsSvcPort     = 4
	ipvsSvcFwmark   = 5
	ipvsSvcFlags    = 7
	ipvsFlagSluice  = 0x20 // on virtual servers of sluice, which may have been taken over from kube-proxy
)

// list returns kube-proxy's link, or nil if it does not exist, and its virtual servers: those at addresses of the link, and
// NodePorts at other local addresses.
func (v ipvs) list() (netlink.Link, []virtualServer, error) {
	link, err := netlink.LinkByName(ipvsLink)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("kube-proxy's leftovers: find link %s: %w", ipvsLink, err)
	case link.Type() != "dummy":
		return nil, nil, nil // of another program
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("kube-proxy's leftovers: list addresses: %w", err)
	}
	onLink := map[netip.Addr]bool{} // has all local addresses
	for _, a := range all {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addr = addr.Unmap()
			onLink[addr] = onLink[addr] || a.LinkIndex == link.Attrs().Index
		}
	}
	servers, err := listVirtualServers()
	if err != nil {
		return nil, nil, err
	}
	return link, slices.DeleteFunc(servers, func(s virtualServer) bool { return !v.isKubeProxyServer(s, onLink) }), nil
}

// isKubeProxyServer reports whether a virtual server is kube-proxy's. onLink has all local addresses, and is true for those on
// kube-proxy's link.
func (v ipvs) isKubeProxyServer(s virtualServer, onLink map[netip.Addr]bool) bool {
	linked, local := onLink[s.addr]
	return linked || local && v.nodePorts.contains(s.port)
}

// ipvsCommand returns a request, or nil if the kernel has not loaded IPVS. Looking up the family would load the module.
func ipvsCommand(command uint8, flags int) (*nl.NetlinkRequest, error) {
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err != nil {
		return nil, nil
	}
	family, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: look up IPVS's netlink family: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	return req, nil
}

func listVirtualServers() ([]virtualServer, error) {
	req, err := ipvsCommand(ipvsGetService, unix.NLM_F_DUMP)
	if req == nil {
		return nil, err
	}
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: list virtual servers: %w", err)
	}
	var out []virtualServer
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		if s, ok := decodeServer(nfnl.Attr(m[nl.SizeofGenlmsg:], ipvsAttrService)); ok {
			out = append(out, s)
		}
	}
	return out, nil
}

// decodeServer decodes a virtual server; false for those of sluice and for firewall marks, which kube-proxy does not use.
func decodeServer(b []byte) (virtualServer, bool) {
	a := maps.Collect(nfnl.Attrs(b))
	family, protocol, addr, port := a[ipvsSvcFamily], a[ipvsSvcProtocol], a[ipvsSvcAddr], a[ipvsSvcPort]
	if flags := a[ipvsSvcFlags]; len(flags) >= 4 && binary.NativeEndian.Uint32(flags)&ipvsFlagSluice != 0 {
		return virtualServer{}, false
	}
	if _, marked := a[ipvsSvcFwmark]; marked || len(family) < 2 || len(protocol) < 2 || len(addr) < 16 || len(port) < 2 {
		return virtualServer{}, false
	}
	s := virtualServer{family: binary.NativeEndian.Uint16(family), protocol: binary.NativeEndian.Uint16(protocol), port: binary.BigEndian.Uint16(port)}
	if s.family == unix.AF_INET {
		s.addr = netip.AddrFrom4([4]byte(addr[:4]))
	} else {
		s.addr = netip.AddrFrom16([16]byte(addr[:16]))
	}
	return s, true
}

// encode is the inverse of decodeServer.
func (s virtualServer) encode() *nl.RtAttr {
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
	out = append(out, Leftover{Location: "IPVS, link " + ipvsLink})
	if len(servers) > 0 {
		out = append(out, Leftover{Location: "IPVS", Kind: "virtual servers", Count: len(servers)})
	}
	return out, nil
}

func (v ipvs) remove(ctx context.Context) error {
	_, err := v.removeUnless(ctx, func(virtualServer) (bool, error) { return false, nil })
	return err
}

// removeUnless removes the virtual servers except those to keep, the addresses that no remaining one has, and, if none
// remains, the link. It returns how many remain.
func (v ipvs) removeUnless(ctx context.Context, keep func(virtualServer) (bool, error)) (left int, err error) {
	link, servers, err := v.list()
	if err != nil || link == nil {
		return 0, err
	}
	addrs := map[netip.Addr]bool{}
	for _, s := range servers {
		kept, err := keep(s)
		if err == nil && kept {
			left++
			addrs[s.addr] = true
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
	all, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return left, fmt.Errorf("kube-proxy's leftovers: list addresses of link %s: %w", ipvsLink, err)
	}
	for i, a := range all {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addrs[addr.Unmap()] {
			continue
		}
		if err := netlink.AddrDel(link, &all[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return left, fmt.Errorf("kube-proxy's leftovers: delete address %s of link %s: %w", a.IP, ipvsLink, err)
		}
	}
	return left, nil
}

// delete deletes a virtual server with its real servers, which ends their connections.
func (s virtualServer) delete() error {
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

// hasConnections reports whether a virtual server has connections, also those that one side has closed: without the virtual
// server, IPVS drops what the other one sends.
func (s virtualServer) hasConnections() (bool, error) {
	req, err := ipvsCommand(ipvsGetDest, unix.NLM_F_DUMP)
	if err != nil || req == nil {
		return false, err
	}
	req.AddData(s.encode())
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("list its real servers: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		d := nfnl.Attr(m[nl.SizeofGenlmsg:], ipvsAttrDest)
		for _, n := range [][]byte{nfnl.Attr(d, ipvsDestActive), nfnl.Attr(d, ipvsDestIdle)} {
			if len(n) >= 4 && binary.NativeEndian.Uint32(n) > 0 {
				return true, nil
			}
		}
	}
	return false, nil
}
