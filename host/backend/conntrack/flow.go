package conntrack

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// flowEntry is what ending connections needs of an entry. Its slices are valid until the next one is decoded.
type flowEntry struct {
	client, frontend netip.AddrPort // source and destination of the client's packets
	endpoint         netip.AddrPort // source of the replies
	protocol         uint8
	tcpState         uint8
	status           uint32
	id               uint32
	reply, zone      []byte // values of attributes
}

// established reports whether both sides have sent packets, and none has closed the connection.
func (c *flowEntry) established() bool {
	return c.protocol != unix.IPPROTO_TCP || c.tcpState == tcpEstablished
}

// unreplied reports whether an entry has seen packets of the client only. A connection of TCP that conntrack meets when it is
// established counts as established.
func (c *flowEntry) unreplied() bool {
	return c.status&statusSeenReply == 0 && (c.protocol != unix.IPPROTO_TCP || c.tcpState == tcpSynSent)
}

// continues reports whether a client may still send packets of a TCP connection: the handshake has begun, and not both sides have
// closed it. The entry of a connection that both have closed is kept for minutes.
func (c *flowEntry) continues() bool {
	return c.protocol == unix.IPPROTO_TCP && c.tcpState >= tcpSynReceived && c.tcpState <= tcpCloseWait
}

// identity returns the attributes by which the kernel finds the entry: the addresses of the replies. They differ if the client
// uses its port again for another endpoint. The addresses of the client's packets do not, and the entry's id need not: the kernel
// computes it from these addresses and from where the entry is in memory (nf_ct_get_id, Linux 5.2).
func (c *flowEntry) identity() string {
	b := appendAttr(make([]byte, 0, len(c.reply)+12), attrTupleReply|unix.NLA_F_NESTED, c.reply)
	if c.zone != nil {
		b = appendAttr(b, attrZone, c.zone)
	}
	return string(b)
}

// listFlows calls onEntry for the entries of a family whose status has these bits in a mask (all entries, before Linux 5.18).
func listFlows(ctx context.Context, f model.Family, status, mask uint32, onEntry func(*flowEntry)) error {
	return listMatching(ctx, dumpRequest(familyOf(f), status, mask), onEntry)
}

// listMatching calls onEntry for the entries that the kernel returns for a request.
func listMatching(ctx context.Context, request []byte, onEntry func(*flowEntry)) error {
	var c flowEntry
	return receive(ctx, request, func(part []byte) (done bool, err error) {
		return eachMessage(part, func(attrs []byte) error {
			if err := c.decode(attrs); err != nil {
				return err
			}
			onEntry(&c)
			return nil
		})
	})
}

// getEntry returns the entry with this identity.
func getEntry(f model.Family, identity string) (c flowEntry, err error) {
	req := newRequest(f, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK) // the answer says that more follow
	req.AddRawData([]byte(identity))
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return c, err
	}
	if len(answers) != 1 || len(answers[0]) < sizeofNfgenmsg {
		return c, errTruncated
	}
	return c, c.decode(answers[0][sizeofNfgenmsg:])
}

// deleteEntry deletes the entry with this id and identity.
func deleteEntry(f model.Family, id uint32, identity string) error {
	req := newRequest(f, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.AddRawData(appendAttr([]byte(identity), attrID, binary.BigEndian.AppendUint32(nil, id)))
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func newRequest(f model.Family, operation, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: familyOf(f), Version: nl.NFNETLINK_V0})
	return req
}

func familyOf(f model.Family) byte {
	if f == model.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func appendAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// decode decodes the attributes of an entry.
func (c *flowEntry) decode(b []byte) error {
	*c = flowEntry{}
	var e entry // for the state of TCP
	var client netip.AddrPort
	err := attributes(b, func(kind uint16, value []byte) error {
		switch {
		case kind == attrTupleOrig:
			return c.tuple(value, &c.client, &c.frontend)
		case kind == attrTupleReply:
			c.reply = value
			return c.tuple(value, &c.endpoint, &client)
		case kind == attrProtoInfo:
			return attributes(value, e.protoInfo)
		case kind == attrStatus && len(value) == 4:
			c.status = binary.BigEndian.Uint32(value)
		case kind == attrID && len(value) == 4:
			c.id = binary.BigEndian.Uint32(value)
		case kind == attrZone:
			c.zone = value
		}
		return nil
	})
	c.tcpState = stateOf(e.tcpState, c.protocol, c.status)
	return err
}

// tuple decodes a tuple.
func (c *flowEntry) tuple(b []byte, from, to *netip.AddrPort) error {
	return attributes(b, func(kind uint16, value []byte) error {
		if kind != attrTupleIP && kind != attrTupleProto {
			return nil
		}
		return attributes(value, func(inner uint16, value []byte) error {
			addr, isAddr := netip.AddrFromSlice(value)
			switch {
			case kind == attrTupleIP && isAddr && (inner == attrIPv4Source || inner == attrIPv6Source):
				*from = netip.AddrPortFrom(addr, from.Port())
			case kind == attrTupleIP && isAddr && (inner == attrIPv4Dest || inner == attrIPv6Dest):
				*to = netip.AddrPortFrom(addr, to.Port())
			case kind == attrTupleProto && inner == attrProtoNum && len(value) == 1:
				c.protocol = value[0]
			case kind == attrTupleProto && inner == attrSourcePort && len(value) == 2:
				*from = netip.AddrPortFrom(from.Addr(), binary.BigEndian.Uint16(value))
			case kind == attrTupleProto && inner == attrDestPort && len(value) == 2:
				*to = netip.AddrPortFrom(to.Addr(), binary.BigEndian.Uint16(value))
			}
			return nil
		})
	})
}
