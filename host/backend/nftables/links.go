package nftables

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/sluice-proxy/sluice/host/util/netns"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// links returns the names of the links for a flowtable, the oldest first: those of type Ethernet (veth, bridge, VLAN, bond and
// VXLAN too) that are up and no part of another one. Packets of a bridge's ports arrive at the bridge.
func links(ns int) (names []string, err error) {
	var rib []byte
	err = netns.Do(ns, func() (err error) {
		rib, err = syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		typ, flags := binary.NativeEndian.Uint16(m.Data[2:]), binary.NativeEndian.Uint32(m.Data[8:])
		attrs := m.Data[unix.SizeofIfInfomsg:]
		if typ == unix.ARPHRD_ETHER && flags&unix.IFF_UP != 0 && nfnl.Attr(attrs, unix.IFLA_MASTER) == nil {
			names = append(names, nfnl.Text(nfnl.Attr(attrs, unix.IFLA_IFNAME)))
		}
	}
	return names, nil
}
