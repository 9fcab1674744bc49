package nftables

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

func (r *ruleBuilder) in(s *set) *ruleBuilder    { return r.member(s, false) }
func (r *ruleBuilder) notIn(s *set) *ruleBuilder { return r.member(s, true) }

func (r *ruleBuilder) member(s *set, not bool) *ruleBuilder {
	r.needs = append(r.needs, s)
	return r.emit(&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.name, Invert: not})
}

// ifExists leaves the rule out unless the set exists.
func (r *ruleBuilder) ifExists(s *set) *ruleBuilder {
	r.needs = append(r.needs, s)
	return r
}

// fromNode matches sources that are addresses of this node.
func (r *ruleBuilder) fromNode() *ruleBuilder {
	return r.emit(
		&expr.Fib{Register: r.reg, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: native(unix.RTN_LOCAL)},
	)
}

// Bits of the status of a connection, from linux/netfilter/nf_conntrack_common.h.
const (
	ctStatusAssured   = 1 << 2 // IPS_ASSURED: the handshake is complete
	ctStatusConfirmed = 1 << 3 // IPS_CONFIRMED: a packet has left this node
	ctStatusDNAT      = 1 << 5 // IPS_DST_NAT
)

// interfaceType matches packets whose interface, by a key of meta, has a type such as ARPHRD_LOOPBACK.
func (r *ruleBuilder) interfaceType(k expr.MetaKey, arphrd uint16) *ruleBuilder {
	return r.emit(
		&expr.Meta{Key: k, Register: r.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: binary.NativeEndian.AppendUint16(nil, arphrd)},
	)
}

// ctNew matches packets whose connection has the state NEW.
func (r *ruleBuilder) ctNew() *ruleBuilder { return r.ctState(expr.CtStateBitNEW) }

func (r *ruleBuilder) ctState(bit uint32) *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeySTATE, Register: r.reg},
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: r.reg, Data: native(0)},
	)
}

func (r *ruleBuilder) ctDNAT() *ruleBuilder { return r.ctStatus(ctStatusDNAT) }

// ctStatus matches connections with a bit in their status.
func (r *ruleBuilder) ctStatus(bit uint32) *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeySTATUS, Register: r.reg},
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: r.reg, Data: native(0)},
	)
}

func (r *ruleBuilder) hasMark(bit uint32) *ruleBuilder {
	return r.emit(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: r.reg},
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: r.reg, Data: native(0)},
	)
}

// hasBits matches packets of which a value has all bits.
func (r *ruleBuilder) hasBits(k expr.MetaKey, bits uint32) *ruleBuilder {
	return r.emit(
		&expr.Meta{Key: k, Register: r.reg},
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: native(bits)},
	)
}

// tcpWithoutSYN matches a TCP packet that begins no connection.
func (r *ruleBuilder) tcpWithoutSYN() *ruleBuilder {
	const syn = 0x02
	return r.emit(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: r.reg, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{0}},
	)
}

func (r *ruleBuilder) l4proto(proto byte) *ruleBuilder { return r.compareProto(expr.CmpOpEq, proto) }

func (r *ruleBuilder) l4protoNot(proto byte) *ruleBuilder {
	return r.compareProto(expr.CmpOpNeq, proto)
}

func (r *ruleBuilder) compareProto(op expr.CmpOp, proto byte) *ruleBuilder {
	return r.emit(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r.reg},
		&expr.Cmp{Op: op, Register: r.reg, Data: []byte{proto}},
	)
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// ctReply matches packets in the direction of replies.
func (r *ruleBuilder) ctReply() *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: r.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{ctDirectionReply}},
	)
}

func (r *ruleBuilder) ctRelated() *ruleBuilder { return r.ctState(expr.CtStateBitRELATED) }

// ctProtocol matches the protocol of a connection, also for an ICMP error about it.
func (r *ruleBuilder) ctProtocol(proto byte) *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeyPROTOCOL, Register: r.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{proto}},
	)
}

// transportByte loads a byte of the transport header.
func (r *ruleBuilder) transportByte(offset uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: r.reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 1}
}

func (r *ruleBuilder) tcpFlags(mask, value byte) *ruleBuilder {
	return r.l4proto(unix.IPPROTO_TCP).emit(
		r.transportByte(13),
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{value}},
	)
}

func (r *ruleBuilder) tcpSequenceZero() *ruleBuilder {
	return r.emit(
		&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: r.reg, Base: expr.PayloadBaseTransportHeader, Offset: 4, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: make([]byte, 4)},
	)
}

// sctpChunk matches the type of the first chunk. nft loads the two comparisons in this order.
func (r *ruleBuilder) sctpChunk(kind byte) *ruleBuilder {
	return r.emit(
		r.transportByte(12),
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{kind}},
	).l4proto(unix.IPPROTO_SCTP)
}

// unreachable matches ICMP destination unreachable, without "fragmentation needed", which refuses no connection.
func (r *ruleBuilder) unreachable() *ruleBuilder {
	if r.family == model.IPv6 {
		return r.l4proto(unix.IPPROTO_ICMPV6).emit(r.transportByte(0), &expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{1}})
	}
	return r.l4proto(unix.IPPROTO_ICMP).emit(
		r.transportByte(0),
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{3}},
		r.transportByte(1),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: r.reg, Data: []byte{4}},
	)
}

const (
	tcpSYN, tcpRST, tcpACK = 0x02, 0x04, 0x10
)

// Types of the first chunk of an SCTP packet, RFC 9260. An INIT ACK is alone in its packet.
const (
	sctpInitAck = 2
	sctpAbort   = 6
)
