package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/model"
)

// flowEntry is an entry of the table. Its slices are valid until the next one is decoded.
type flowEntry struct {
	client, frontend netip.AddrPort // source and destination of the client's packets
	endpoint         netip.AddrPort // source of the replies
	protocol         uint8
	tcpState         uint8
	id               uint32
	reply, zone      []byte // attributes
}

// Attributes of an entry (enum ctattr_type), and of those nested in it.
const (
	ctaTupleOrig = 1
	ctaTupleRepl = 2
	ctaProtoInfo = 4
	ctaID        = 12
	ctaZone      = 18

	tcpStateEstablished = 3 // enum tcp_conntrack
)

var errShortAttribute = errors.New("an attribute is truncated")

// established reports whether both sides have sent packets, and none has closed the connection.
func (c *flowEntry) established() bool {
	return c.protocol != unix.IPPROTO_TCP || c.tcpState == tcpStateEstablished
}

// identity returns the attributes by which the kernel finds the entry.
func (c *flowEntry) identity() string { return string(c.reply) + string(c.zone) }

// listFlows calls onEntry for the entries of a family that have a reply (all entries, before Linux 5.18).
func listFlows(ctx context.Context, f model.Family, onEntry func(*flowEntry)) error {
	req := newRequest(f, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	req.AddRawData(seenReplyFilter())
	var c flowEntry
	var failed error
	err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if failed = ctx.Err(); failed == nil && len(msg) > nl.SizeofNfgenmsg {
			failed = c.decode(msg[nl.SizeofNfgenmsg:])
		}
		if failed == nil {
			onEntry(&c)
		}
		return failed == nil
	})
	if errors.Is(err, nl.ErrDumpInterrupted) { // entries have moved: some may be missing, which a shed does not notice
		err = nil
	}
	return errors.Join(failed, err)
}

// seenReplyFilter returns the attributes CTA_STATUS and CTA_STATUS_MASK with the bit IPS_SEEN_REPLY. Older kernels ignore them.
func seenReplyFilter() (b []byte) {
	const status, statusMask, seenReply = 3, 26, 1 << 1
	for _, kind := range [...]uint16{status, statusMask} {
		b = binary.NativeEndian.AppendUint16(b, 8)
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = binary.BigEndian.AppendUint32(b, seenReply)
	}
	return b
}

// deleteEntry deletes the entry with this id and identity.
func deleteEntry(f model.Family, id uint32, identity string) error {
	req := newRequest(f, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	b := binary.NativeEndian.AppendUint16([]byte(identity), 8)
	b = binary.NativeEndian.AppendUint16(b, ctaID)
	req.AddRawData(binary.BigEndian.AppendUint32(b, id))
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func newRequest(f model.Family, operation, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	family := uint8(unix.AF_INET)
	if f == model.IPv6 {
		family = unix.AF_INET6
	}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

// decode decodes the attributes of an entry.
func (c *flowEntry) decode(b []byte) error {
	*c = flowEntry{}
	return eachAttr(b, func(kind uint16, value, all []byte) error {
		switch {
		case kind == ctaTupleOrig:
			return eachAttr(value, func(kind uint16, value, _ []byte) error { return c.tuple(kind, value, &c.client, &c.frontend) })
		case kind == ctaTupleRepl:
			c.reply = all
			var client netip.AddrPort
			return eachAttr(value, func(kind uint16, value, _ []byte) error { return c.tuple(kind, value, &c.endpoint, &client) })
		case kind == ctaProtoInfo:
			return eachAttr(value, func(kind uint16, value, _ []byte) error {
				if kind != 1 { // CTA_PROTOINFO_TCP
					return nil
				}
				return eachAttr(value, func(kind uint16, value, _ []byte) error {
					if kind == 1 && len(value) == 1 { // CTA_PROTOINFO_TCP_STATE
						c.tcpState = value[0]
					}
					return nil
				})
			})
		case kind == ctaID && len(value) == 4:
			c.id = binary.BigEndian.Uint32(value)
		case kind == ctaZone:
			c.zone = all
		}
		return nil
	})
}

// tuple decodes a part of a tuple: addresses or ports.
func (c *flowEntry) tuple(kind uint16, value []byte, from, to *netip.AddrPort) error {
	const ip, proto = 1, 2
	return eachAttr(value, func(inner uint16, value, _ []byte) error {
		addr, isAddr := netip.AddrFromSlice(value)
		switch {
		case kind == ip && isAddr && (inner == 1 || inner == 3): // CTA_IP_V4_SRC, CTA_IP_V6_SRC
			*from = netip.AddrPortFrom(addr, from.Port())
		case kind == ip && isAddr && (inner == 2 || inner == 4): // CTA_IP_V4_DST, CTA_IP_V6_DST
			*to = netip.AddrPortFrom(addr, to.Port())
		case kind == proto && inner == 1 && len(value) == 1: // CTA_PROTO_NUM
			c.protocol = value[0]
		case kind == proto && inner == 2 && len(value) == 2: // CTA_PROTO_SRC_PORT
			*from = netip.AddrPortFrom(from.Addr(), binary.BigEndian.Uint16(value))
		case kind == proto && inner == 3 && len(value) == 2: // CTA_PROTO_DST_PORT
			*to = netip.AddrPortFrom(to.Addr(), binary.BigEndian.Uint16(value))
		}
		return nil
	})
}

// eachAttr calls f for each netlink attribute in b, with its value, and with its header and padding.
func eachAttr(b []byte, f func(kind uint16, value, all []byte) error) error {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlAttr {
			return errShortAttribute
		}
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return errShortAttribute
		}
		padded := min(len(b), (size+3)&^3)
		kind := binary.NativeEndian.Uint16(b[2:]) &^ uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)
		if err := f(kind, b[unix.SizeofNlAttr:size], b[:padded]); err != nil {
			return err
		}
		b = b[padded:]
	}
	return nil
}
