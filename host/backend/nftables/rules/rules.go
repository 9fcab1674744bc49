package rules

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/model"
	"golang.org/x/sys/unix"
)

// rule is a line of a chain, and the sets that it needs: without them it is left out.
type rule struct {
	exprs []expr.Any
	needs []*set
}

// writer builds the expressions of one rule. Registers are the 16 of 4 bytes each; the kernel reports them under
// the older names where one of 16 bytes starts.
type writer struct {
	rule
	family model.Family
	reg    uint32 // the next free one
	key    uint32 // where the key under construction starts
}

func newRule(f model.Family) *writer {
	return &writer{family: f, reg: unix.NFT_REG32_00, key: unix.NFT_REG32_00}
}

// end closes a match, so that the next one starts over with all registers.
func (w *writer) end(e ...expr.Any) *writer {
	w.exprs = append(w.exprs, e...)
	w.reg = unix.NFT_REG32_00
	return w
}

func (w *writer) load(e expr.Any, bytes int) *writer {
	w.exprs = append(w.exprs, e)
	w.reg += uint32(nfnl.Align(bytes) / 4)
	return w
}

func (w *writer) header(offset4, offset6 uint32) *writer {
	off, n := offset4, uint32(4)
	if w.family == model.IPv6 {
		off, n = offset6, 16
	}
	return w.load(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: w.reg, Base: expr.PayloadBaseNetworkHeader, Offset: off, Len: n,
	}, int(n))
}

func (w *writer) saddr() *writer { return w.header(12, 8) }
func (w *writer) daddr() *writer { return w.header(16, 24) }
func (w *writer) proto() *writer {
	return w.load(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: w.reg}, 4)
}
func (w *writer) dport() *writer {
	return w.load(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: w.reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2,
	}, 2)
}

// frontend loads the key of a side's sets from the packet.
func (w *writer) frontend(i side) *writer {
	if i == byAddress {
		w.daddr()
	}
	return w.proto().dport()
}

// original loads the same key as the packet had it before DNAT.
func (w *writer) original(i side) *writer {
	if i == byAddress {
		w.originalDst()
	}
	return w.proto().load(&expr.Ct{Key: expr.CtKeyPROTODST, Register: w.reg}, 2)
}

func (w *writer) originalDst() *writer { return w.ctAddr(expr.CtKeyDSTIP, expr.CtKeyDSTIP6) }
func (w *writer) originalSrc() *writer { return w.ctAddr(expr.CtKeySRCIP, expr.CtKeySRCIP6) }

func (w *writer) ctAddr(key4, key6 expr.CtKey) *writer {
	if w.family == model.IPv6 {
		return w.load(&expr.Ct{Key: key6, Register: w.reg}, 16)
	}
	return w.load(&expr.Ct{Key: key4, Register: w.reg}, 4)
}

func (w *writer) iifname() *writer {
	return w.load(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: w.reg}, 16)
}

func (w *writer) random(mod uint32) *writer {
	return w.load(&expr.Numgen{Register: w.reg, Modulus: mod, Type: unix.NFT_NG_RANDOM}, 4)
}

// hash loads a hash of the client's address. The address goes to registers of its own first, as nft has it.
func (w *writer) hash(mod, seed uint32) *writer {
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

func (w *writer) in(s *set) *writer    { return w.member(s, false) }
func (w *writer) notIn(s *set) *writer { return w.member(s, true) }

func (w *writer) member(s *set, not bool) *writer {
	w.needs = append(w.needs, s)
	return w.end(&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: s.name, Invert: not})
}

// dnat looks the loaded key up in a map and goes to what it finds; when it finds nothing, the next rule is tried.
func (w *writer) dnat(m *set) *writer {
	w.needs = append(w.needs, m)
	fam, port := uint32(unix.NFPROTO_IPV4), uint32(unix.NFT_REG32_00+1)
	if w.family == model.IPv6 {
		fam, port = unix.NFPROTO_IPV6, unix.NFT_REG32_00+4
	}
	return w.end(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: m.name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: fam, RegAddrMin: unix.NFT_REG32_00, RegProtoMin: port, Specified: true},
	)
}

func (w *writer) verdict(kind expr.VerdictKind, chain string) *writer {
	return w.end(&expr.Verdict{Kind: kind, Chain: chain})
}

func (w *writer) jump(chain string) *writer { return w.verdict(expr.VerdictJump, chain) }
func (w *writer) goTo(chain string) *writer { return w.verdict(expr.VerdictGoto, chain) }
func (w *writer) back() *writer             { return w.verdict(expr.VerdictReturn, "") }
func (w *writer) drop() *writer             { return w.verdict(expr.VerdictDrop, "") }
func (w *writer) counter() *writer          { return w.end(&expr.Counter{}) }

// reject answers with ICMP port unreachable.
func (w *writer) reject() *writer {
	code := uint8(3)
	if w.family == model.IPv6 {
		code = 4
	}
	return w.end(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
}

// fromNode matches sources that are addresses of this node.
func (w *writer) fromNode() *writer {
	return w.end(
		&expr.Fib{Register: w.reg, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: native(unix.RTN_LOCAL)},
	)
}

const ctStatusDNAT = 1 << 5 // IPS_DST_NAT

func (w *writer) wasDNATed() *writer {
	return w.end(
		&expr.Ct{Key: expr.CtKeySTATUS, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(ctStatusDNAT), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: w.reg, Data: native(0)},
	)
}

func (w *writer) marked(bit uint32) *writer {
	return w.end(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: w.reg, Data: native(0)},
	)
}

// mark sets the bit; flipMark flips it.
func (w *writer) mark(bit uint32) *writer     { return w.changeMark(^bit, bit) }
func (w *writer) flipMark(bit uint32) *writer { return w.changeMark(^uint32(0), bit) }

func (w *writer) changeMark(mask, xor uint32) *writer {
	return w.end(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(mask), Xor: native(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg, SourceRegister: true},
	)
}

func (w *writer) masquerade() *writer { return w.end(&expr.Masq{FullyRandom: true}) }

// setID looks a frontend's owner up and puts its id in the packet's priority, the one place of a packet where it does
// no harm for a moment: forwarding sets it anew, and dropID leaves it as it is at first. (A look-up for which the
// result of another is the key would need no place, but nft 1.0.6 aborts when it lists one.)
func (w *writer) setID(owners *set) *writer {
	w.needs = append(w.needs, owners)
	return w.end(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: owners.name},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *writer) dropID() *writer {
	return w.end(
		&expr.Immediate{Register: unix.NFT_REG32_00, Data: native(0)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *writer) id() *writer {
	return w.load(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: w.reg}, 4)
}

// remember notes, or keeps on noting, which member a client got: client . owner's id → member.
func (w *writer) remember(affinity *set, timeout time.Duration) *writer {
	w.needs = append(w.needs, affinity)
	w.originalSrc().id()
	data := w.reg
	w.daddr().dport()
	return w.end(&expr.Dynset{
		SrcRegKey: unix.NFT_REG32_00, SrcRegData: data, SetName: affinity.name,
		Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout,
	})
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
