package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Attributes of a conntrack entry (enum ctattr_type and those nested in it).
const (
	attrTupleOrig  = 1
	attrTupleReply = 2
	attrStatus     = 3
	attrProtoInfo  = 4
	attrID         = 12
	attrZone       = 18
	attrStatusMask = 26

	attrTupleIP    = 1 // in a tuple
	attrTupleProto = 2
	attrIPv4Source = 1 // in attrTupleIP
	attrIPv4Dest   = 2
	attrIPv6Source = 3
	attrIPv6Dest   = 4
	attrProtoNum   = 1 // in attrTupleProto
	attrSourcePort = 2
	attrDestPort   = 3
	attrTCP        = 1 // in attrProtoInfo
	attrTCPState   = 1 // in attrTCP

	tcpSynSent     = 1 // enum tcp_conntrack
	tcpSynReceived = 2
	tcpEstablished = 3
	tcpCloseWait   = 5 // after 4, FIN_WAIT: one side has closed

	sizeofNfgenmsg = 4 // struct nfgenmsg
)

// entry is what counting needs of a conntrack entry.
type entry struct {
	status    uint32
	protocol  uint8
	tcpState  uint8
	replyFrom netip.AddrPort // source of the replies
	addr      netip.Addr
	port      uint16
}

var errTruncated = errors.New("truncated message")

// messages decodes a part of a dump. done reports whether it is the last one.
func (e *entry) messages(b []byte, onEntry func(*entry)) (done bool, err error) {
	return eachMessage(b, func(attrs []byte) error {
		if err := e.decode(attrs); err != nil {
			return err
		}
		onEntry(e)
		return nil
	})
}

// eachMessage calls onEntry with the attributes of each entry in a part of a dump. done reports whether it is the last one.
func eachMessage(b []byte, onEntry func(attrs []byte) error) (done bool, err error) {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr {
			return false, errTruncated
		}
		size, kind := int64(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:])
		if size < unix.SizeofNlMsghdr || size > int64(len(b)) {
			return false, errTruncated
		}
		body := b[unix.SizeofNlMsghdr:size]
		b = b[min(int64(len(b)), (size+3)&^3):]
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(body) < 4 {
				return true, nil
			}
			if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
				return true, fmt.Errorf("kernel: %w", unix.Errno(-code))
			}
			return true, nil
		case unix.NLMSG_NOOP:
			continue
		}
		if len(body) < sizeofNfgenmsg {
			return false, errTruncated
		}
		if err := onEntry(body[sizeofNfgenmsg:]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// decode decodes the attributes of an entry.
func (e *entry) decode(b []byte) error {
	*e = entry{}
	err := attributes(b, func(kind uint16, value []byte) error {
		switch {
		case kind == attrTupleReply:
			return attributes(value, e.tuple)
		case kind == attrStatus && len(value) == 4:
			e.status = binary.BigEndian.Uint32(value)
		case kind == attrProtoInfo:
			return attributes(value, e.protoInfo)
		}
		return nil
	})
	e.replyFrom = netip.AddrPortFrom(e.addr, e.port)
	e.tcpState = stateOf(e.tcpState, e.protocol, e.status)
	return err
}

// stateOf returns the state of a TCP connection. The kernel leaves out that of a connection in a flowtable, which is established:
// a FIN or RST takes it out of there.
func stateOf(tcpState, protocol uint8, status uint32) uint8 {
	if tcpState == 0 && protocol == unix.IPPROTO_TCP && status&statusOffload != 0 {
		return tcpEstablished
	}
	return tcpState
}

func (e *entry) tuple(kind uint16, value []byte) error {
	switch kind {
	case attrTupleIP:
		return attributes(value, func(kind uint16, value []byte) error {
			switch {
			case kind == attrIPv4Source && len(value) == 4:
				e.addr = netip.AddrFrom4([4]byte(value))
			case kind == attrIPv6Source && len(value) == 16:
				e.addr = netip.AddrFrom16([16]byte(value))
			}
			return nil
		})
	case attrTupleProto:
		return attributes(value, func(kind uint16, value []byte) error {
			switch {
			case kind == attrProtoNum && len(value) == 1:
				e.protocol = value[0]
			case kind == attrSourcePort && len(value) == 2:
				e.port = binary.BigEndian.Uint16(value)
			}
			return nil
		})
	}
	return nil
}

func (e *entry) protoInfo(kind uint16, value []byte) error {
	if kind != attrTCP {
		return nil
	}
	return attributes(value, func(kind uint16, value []byte) error {
		if kind == attrTCPState && len(value) == 1 {
			e.tcpState = value[0]
		}
		return nil
	})
}

// attributes calls f for each netlink attribute in b.
func attributes(b []byte, f func(kind uint16, value []byte) error) error {
	const nestedOrByteOrder = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	for len(b) > 0 {
		if len(b) < unix.SizeofNlAttr {
			return errTruncated
		}
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&^uint16(nestedOrByteOrder)
		if size < unix.SizeofNlAttr || size > len(b) {
			return errTruncated
		}
		if err := f(kind, b[unix.SizeofNlAttr:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil
}
