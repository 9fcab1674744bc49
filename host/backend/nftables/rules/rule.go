package rules

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/model"
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
func (w *ruleBuilder) emit(e ...expr.Any) *ruleBuilder {
	w.exprs = append(w.exprs, e...)
	w.reg = unix.NFT_REG32_00
	return w
}

func (w *ruleBuilder) load(e expr.Any, bytes int) *ruleBuilder {
	w.exprs = append(w.exprs, e)
	w.reg += uint32(nfnl.Align(bytes) / 4)
	return w
}

func (w *ruleBuilder) header(offset4, offset6 uint32) *ruleBuilder {
	off, n := offset4, uint32(4)
	if w.family == model.IPv6 {
		off, n = offset6, 16
	}
	return w.load(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: w.reg, Base: expr.PayloadBaseNetworkHeader, Offset: off, Len: n,
	}, int(n))
}

func (w *ruleBuilder) saddr() *ruleBuilder { return w.header(12, 8) }
func (w *ruleBuilder) daddr() *ruleBuilder { return w.header(16, 24) }
func (w *ruleBuilder) proto() *ruleBuilder {
	return w.load(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: w.reg}, 4)
}
func (w *ruleBuilder) dport() *ruleBuilder {
	return w.load(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: w.reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2,
	}, 2)
}

// frontendKey loads the key of the sets of frontends.
func (w *ruleBuilder) frontendKey(i lookup) *ruleBuilder {
	if i == byAddress {
		w.daddr()
	}
	return w.proto().dport()
}

// originalKey loads the same key as it was before DNAT.
func (w *ruleBuilder) originalKey(i lookup) *ruleBuilder {
	if i == byAddress {
		w.originalDst()
	}
	return w.proto().load(&expr.Ct{Key: expr.CtKeyPROTODST, Register: w.reg}, 2)
}

func (w *ruleBuilder) originalDst() *ruleBuilder { return w.ctAddr(expr.CtKeyDSTIP, expr.CtKeyDSTIP6) }
func (w *ruleBuilder) originalSrc() *ruleBuilder { return w.ctAddr(expr.CtKeySRCIP, expr.CtKeySRCIP6) }

func (w *ruleBuilder) ctAddr(key4, key6 expr.CtKey) *ruleBuilder {
	if w.family == model.IPv6 {
		return w.load(&expr.Ct{Key: key6, Register: w.reg}, 16)
	}
	return w.load(&expr.Ct{Key: key4, Register: w.reg}, 4)
}

func (w *ruleBuilder) iifname() *ruleBuilder {
	return w.load(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: w.reg}, 16)
}

func (w *ruleBuilder) random(mod uint32) *ruleBuilder {
	return w.load(&expr.Numgen{Register: w.reg, Modulus: mod, Type: unix.NFT_NG_RANDOM}, 4)
}

// hash loads a hash of the client's address. The address gets registers of its own, as nft does it.
func (w *ruleBuilder) hash(mod, seed uint32) *ruleBuilder {
	slot := w.reg
	w.reg = unix.NFT_REG32_00 + 4
	if w.family == model.IPv6 {
		w.reg = unix.NFT_REG32_00 + 8
	}
	src, n := w.reg, uint32(4)
	if w.family == model.IPv6 {
		n = 16
	}
	w.saddr()
	w.reg = slot
	return w.load(&expr.Hash{
		SourceRegister: src, DestRegister: slot, Length: n, Modulus: mod, Seed: seed, Type: expr.HashTypeJenkins,
	}, 4)
}

func (w *ruleBuilder) in(s *set) *ruleBuilder    { return w.member(s, false) }
func (w *ruleBuilder) notIn(s *set) *ruleBuilder { return w.member(s, true) }

func (w *ruleBuilder) member(s *set, not bool) *ruleBuilder {
	w.needs = append(w.needs, s)
	return w.emit(&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.name, Invert: not})
}

// dnat looks the loaded key up in a map and translates to the result. Without one, the next rule is tried.
func (w *ruleBuilder) dnat(m *set) *ruleBuilder {
	w.needs = append(w.needs, m)
	fam, port := uint32(unix.NFPROTO_IPV4), uint32(unix.NFT_REG32_00+1)
	if w.family == model.IPv6 {
		fam, port = unix.NFPROTO_IPV6, unix.NFT_REG32_00+4
	}
	return w.emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: m.name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: fam, RegAddrMin: unix.NFT_REG32_00, RegProtoMin: port, Specified: true},
	)
}

func (w *ruleBuilder) verdict(kind expr.VerdictKind, chain string) *ruleBuilder {
	return w.emit(&expr.Verdict{Kind: kind, Chain: chain})
}

func (w *ruleBuilder) jump(chain string) *ruleBuilder      { return w.verdict(expr.VerdictJump, chain) }
func (w *ruleBuilder) gotoChain(chain string) *ruleBuilder { return w.verdict(expr.VerdictGoto, chain) }
func (w *ruleBuilder) ret() *ruleBuilder                   { return w.verdict(expr.VerdictReturn, "") }
func (w *ruleBuilder) drop() *ruleBuilder                  { return w.verdict(expr.VerdictDrop, "") }
func (w *ruleBuilder) accept() *ruleBuilder                { return w.verdict(expr.VerdictAccept, "") }
func (w *ruleBuilder) counter() *ruleBuilder               { return w.emit(&expr.Counter{}) }

// reject replies with ICMP port unreachable.
func (w *ruleBuilder) reject() *ruleBuilder {
	code := uint8(3)
	if w.family == model.IPv6 {
		code = 4
	}
	return w.emit(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
}

// fromNode matches sources that are addresses of this node.
func (w *ruleBuilder) fromNode() *ruleBuilder {
	return w.emit(
		&expr.Fib{Register: w.reg, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: native(unix.RTN_LOCAL)},
	)
}

const ctStatusDNAT = 1 << 5 // IPS_DST_NAT

func (w *ruleBuilder) ctDNAT() *ruleBuilder {
	return w.emit(
		&expr.Ct{Key: expr.CtKeySTATUS, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(ctStatusDNAT), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: w.reg, Data: native(0)},
	)
}

func (w *ruleBuilder) hasMark(bit uint32) *ruleBuilder {
	return w.emit(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: w.reg, Data: native(0)},
	)
}

// orMark sets the bit; xorMark flips it.
func (w *ruleBuilder) orMark(bit uint32) *ruleBuilder  { return w.changeMark(^bit, bit) }
func (w *ruleBuilder) xorMark(bit uint32) *ruleBuilder { return w.changeMark(^uint32(0), bit) }

func (w *ruleBuilder) changeMark(mask, xor uint32) *ruleBuilder {
	return w.emit(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(mask), Xor: native(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg, SourceRegister: true},
	)
}

func (w *ruleBuilder) masquerade() *ruleBuilder { return w.emit(&expr.Masq{FullyRandom: true}) }

// setGroupID looks up a frontend's group id and puts it in the packet's priority, where it does no harm for a moment:
// forwarding sets the priority again, and clearGroupID restores the initial one. A lookup keyed by another lookup's
// result would need no such place, but nft 1.0.6 aborts when it lists one.
func (w *ruleBuilder) setGroupID(owners *set) *ruleBuilder {
	w.needs = append(w.needs, owners)
	return w.emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: owners.name},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *ruleBuilder) clearGroupID() *ruleBuilder {
	return w.emit(
		&expr.Immediate{Register: unix.NFT_REG32_00, Data: native(0)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *ruleBuilder) groupID() *ruleBuilder {
	return w.load(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: w.reg}, 4)
}

// updateAffinity records or refreshes a client's endpoint: client . group id : endpoint.
func (w *ruleBuilder) updateAffinity(affinity *set, timeout time.Duration) *ruleBuilder {
	w.needs = append(w.needs, affinity)
	w.originalSrc().groupID()
	data := w.reg
	w.daddr().dport()
	return w.emit(&expr.Dynset{
		SrcRegKey: unix.NFT_REG32_00, SrcRegData: data, SetName: affinity.name,
		Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout,
	})
}

// tcpWithoutSYN matches a TCP packet that begins no connection.
func (w *ruleBuilder) tcpWithoutSYN() *ruleBuilder {
	const syn = 0x02
	return w.emit(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: w.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: w.reg, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: []byte{0}},
	)
}

func (w *ruleBuilder) tcpReset() *ruleBuilder {
	return w.emit(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

// ifExists leaves the rule out unless the set exists.
func (w *ruleBuilder) ifExists(s *set) *ruleBuilder {
	w.needs = append(w.needs, s)
	return w
}

// markFrom looks the loaded key up and marks the packet with the result.
func (w *ruleBuilder) markFrom(m *set) *ruleBuilder {
	return w.ifExists(m).emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: m.name},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *ruleBuilder) hasPoolMark() *ruleBuilder {
	return w.emit(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(MarkMask), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: native(MarkBase)},
	)
}

func (w *ruleBuilder) setMark(v uint32) *ruleBuilder     { return w.setMeta(expr.MetaKeyMARK, v) }
func (w *ruleBuilder) setPriority(v uint32) *ruleBuilder { return w.setMeta(expr.MetaKeyPRIORITY, v) }

func (w *ruleBuilder) setMeta(k expr.MetaKey, v uint32) *ruleBuilder {
	return w.emit(
		&expr.Immediate{Register: unix.NFT_REG32_00, Data: native(v)},
		&expr.Meta{Key: k, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *ruleBuilder) hasPriority(v uint32) *ruleBuilder {
	return w.emit(
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: w.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: native(v)},
	)
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
