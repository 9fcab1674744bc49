package rules

import (
	"encoding/binary"
	"net"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

// rule is the expressions of a rule and the sets that it uses. It is left out unless they exist.
type rule struct {
	exprs []expr.Any
	needs []*set
}

// ruleBuilder builds a rule. There are 16 registers of 4 bytes; the kernel lists them by their older names where one of
// 16 bytes begins.
type ruleBuilder struct {
	rule
	family model.Family
	reg    uint32 // the next free one
	key    uint32 // where the key under construction starts
}

func newRule(f model.Family) *ruleBuilder {
	return &ruleBuilder{family: f, reg: unix.NFT_REG32_00, key: unix.NFT_REG32_00}
}

// emit ends a statement: the next one starts with all registers free.
func (r *ruleBuilder) emit(e ...expr.Any) *ruleBuilder {
	r.exprs = append(r.exprs, e...)
	r.reg = unix.NFT_REG32_00
	return r
}

func (r *ruleBuilder) load(e expr.Any, bytes int) *ruleBuilder {
	r.exprs = append(r.exprs, e)
	r.reg += uint32(nfnl.Align(bytes) / 4)
	return r
}

func (r *ruleBuilder) header(offset4, offset6 uint32) *ruleBuilder {
	off, n := offset4, uint32(4)
	if r.family == model.IPv6 {
		off, n = offset6, 16
	}
	return r.load(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: r.reg, Base: expr.PayloadBaseNetworkHeader, Offset: off, Len: n,
	}, int(n))
}

func (r *ruleBuilder) saddr() *ruleBuilder { return r.header(12, 8) }
func (r *ruleBuilder) daddr() *ruleBuilder { return r.header(16, 24) }

// saddrPrefix loads the first bits of the source address.
func (r *ruleBuilder) saddrPrefix(bits int) *ruleBuilder {
	at, n := r.reg, ipv4Field.bytes
	if r.family == model.IPv6 {
		n = ipv6Field.bytes
	}
	if r.saddr(); bits < n*8 {
		r.exprs = append(r.exprs, &expr.Bitwise{
			SourceRegister: at, DestRegister: at, Len: uint32(n), Mask: net.CIDRMask(bits, n*8), Xor: make([]byte, n),
		})
	}
	return r
}

func (r *ruleBuilder) proto() *ruleBuilder {
	return r.load(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r.reg}, 4)
}
func (r *ruleBuilder) dport() *ruleBuilder {
	return r.load(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: r.reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2,
	}, 2)
}

// frontendKey loads the key of the sets of frontends.
func (r *ruleBuilder) frontendKey(i lookup) *ruleBuilder {
	if i == byAddress {
		r.daddr()
	}
	return r.proto().dport()
}

// protocols are those of frontends. nft loads some rules only if they match one first: nft 1.0.6 those with a port before DNAT in a
// key, and all versions those that translate to a port from a map without the port in its key.
var protocols = [...]byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}

// originalKey loads the same key as it was before DNAT. The rule has to match the protocol first, by ctProtocol.
func (r *ruleBuilder) originalKey(i lookup) *ruleBuilder {
	if i == byAddress {
		r.originalDst()
	}
	return r.proto().originalPort(expr.CtKeyPROTODST)
}

func (r *ruleBuilder) originalPort(key expr.CtKey) *ruleBuilder {
	return r.load(&expr.Ct{Key: key, Register: r.reg}, 2)
}

func (r *ruleBuilder) originalDst() *ruleBuilder { return r.ctAddr(expr.CtKeyDSTIP, expr.CtKeyDSTIP6) }
func (r *ruleBuilder) originalSrc() *ruleBuilder { return r.ctAddr(expr.CtKeySRCIP, expr.CtKeySRCIP6) }

func (r *ruleBuilder) ctAddr(key4, key6 expr.CtKey) *ruleBuilder {
	if r.family == model.IPv6 {
		return r.load(&expr.Ct{Key: key6, Register: r.reg}, 16)
	}
	return r.load(&expr.Ct{Key: key4, Register: r.reg}, 4)
}

func (r *ruleBuilder) iifname() *ruleBuilder {
	return r.load(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: r.reg}, 16)
}

func (r *ruleBuilder) random(mod uint32) *ruleBuilder {
	return r.load(&expr.Numgen{Register: r.reg, Modulus: mod, Type: unix.NFT_NG_RANDOM}, 4)
}

// hash loads a hash of the client's address. The address gets registers of its own, as nft does it.
func (r *ruleBuilder) hash(mod, seed uint32) *ruleBuilder {
	slot := r.reg
	r.reg = unix.NFT_REG32_00 + 4
	if r.family == model.IPv6 {
		r.reg = unix.NFT_REG32_00 + 8
	}
	src, n := r.reg, uint32(4)
	if r.family == model.IPv6 {
		n = 16
	}
	r.saddr()
	r.reg = slot
	return r.load(&expr.Hash{
		SourceRegister: src, DestRegister: slot, Length: n, Modulus: mod, Seed: seed, Type: expr.HashTypeJenkins,
	}, 4)
}

func (r *ruleBuilder) in(s *set) *ruleBuilder    { return r.member(s, false) }
func (r *ruleBuilder) notIn(s *set) *ruleBuilder { return r.member(s, true) }

func (r *ruleBuilder) member(s *set, not bool) *ruleBuilder {
	r.needs = append(r.needs, s)
	return r.emit(&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.name, Invert: not})
}

// dnat looks the loaded key up in a map and translates to the result. Without one, the next rule is tried.
func (r *ruleBuilder) dnat(m *set) *ruleBuilder {
	r.needs = append(r.needs, m)
	fam, port := uint32(unix.NFPROTO_IPV4), uint32(unix.NFT_REG32_00+1)
	if r.family == model.IPv6 {
		fam, port = unix.NFPROTO_IPV6, unix.NFT_REG32_00+4
	}
	return r.emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: m.name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: fam, RegAddrMin: unix.NFT_REG32_00, RegProtoMin: port, Specified: true},
	)
}

// keepDestination accepts a connection and ends its destination NAT: what the kernel does when no rule of any chain translates it.
func (r *ruleBuilder) keepDestination() *ruleBuilder {
	return r.daddr().emit(&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfproto(r.family)), RegAddrMin: unix.NFT_REG32_00})
}

func (r *ruleBuilder) verdict(kind expr.VerdictKind, chain string) *ruleBuilder {
	return r.emit(&expr.Verdict{Kind: kind, Chain: chain})
}

func (r *ruleBuilder) jump(chain string) *ruleBuilder      { return r.verdict(expr.VerdictJump, chain) }
func (r *ruleBuilder) gotoChain(chain string) *ruleBuilder { return r.verdict(expr.VerdictGoto, chain) }
func (r *ruleBuilder) ret() *ruleBuilder                   { return r.verdict(expr.VerdictReturn, "") }
func (r *ruleBuilder) drop() *ruleBuilder                  { return r.verdict(expr.VerdictDrop, "") }
func (r *ruleBuilder) accept() *ruleBuilder                { return r.verdict(expr.VerdictAccept, "") }
func (r *ruleBuilder) counter() *ruleBuilder               { return r.emit(&expr.Counter{}) }

// reject replies with ICMP port unreachable.
func (r *ruleBuilder) reject() *ruleBuilder {
	code := uint8(3)
	if r.family == model.IPv6 {
		code = 4
	}
	return r.emit(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
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

// ctState matches packets whose connection has a state, by its bit.
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

// orMark sets the bit; xorMark flips it.
func (r *ruleBuilder) orMark(bit uint32) *ruleBuilder  { return r.changeMark(^bit, bit) }
func (r *ruleBuilder) xorMark(bit uint32) *ruleBuilder { return r.changeMark(^uint32(0), bit) }

func (r *ruleBuilder) changeMark(mask, xor uint32) *ruleBuilder {
	return r.copyMeta(expr.MetaKeyMARK, expr.MetaKeyMARK, mask, xor)
}

func (r *ruleBuilder) masquerade() *ruleBuilder { return r.emit(&expr.Masq{FullyRandom: true}) }

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

func (r *ruleBuilder) tcpReset() *ruleBuilder {
	return r.emit(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

// ifExists leaves the rule out unless the set exists.
func (r *ruleBuilder) ifExists(s *set) *ruleBuilder {
	r.needs = append(r.needs, s)
	return r
}

// markFrom looks the loaded key up and marks the packet with the result.
func (r *ruleBuilder) markFrom(m *set) *ruleBuilder {
	return r.ifExists(m).emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: m.name},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG32_00, SourceRegister: true},
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

// copyMeta copies the masked bits of a value to another one, flipped by xor.
func (r *ruleBuilder) copyMeta(from, to expr.MetaKey, mask, xor uint32) *ruleBuilder {
	return r.emit(
		&expr.Meta{Key: from, Register: r.reg},
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 4, Mask: native(mask), Xor: native(xor)},
		&expr.Meta{Key: to, Register: r.reg, SourceRegister: true},
	)
}

func (r *ruleBuilder) setMeta(k expr.MetaKey, v uint32) *ruleBuilder {
	return r.emit(
		&expr.Immediate{Register: unix.NFT_REG32_00, Data: native(v)},
		&expr.Meta{Key: k, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
