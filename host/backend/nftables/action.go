package nftables

import (
	"time"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

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

// keepDestination accepts a connection and ends its destination NAT: what the kernel does when no rule of any chain translates
// it.
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

func (r *ruleBuilder) tcpReset() *ruleBuilder {
	return r.emit(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

func (r *ruleBuilder) masquerade() *ruleBuilder { return r.emit(&expr.Masq{FullyRandom: true}) }

// orMark sets the bit; xorMark flips it.
func (r *ruleBuilder) orMark(bit uint32) *ruleBuilder  { return r.changeMark(^bit, bit) }
func (r *ruleBuilder) xorMark(bit uint32) *ruleBuilder { return r.changeMark(^uint32(0), bit) }

func (r *ruleBuilder) changeMark(mask, xor uint32) *ruleBuilder {
	return r.copyMeta(expr.MetaKeyMARK, expr.MetaKeyMARK, mask, xor)
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

// markFrom looks the loaded key up and marks the packet with the result.
func (r *ruleBuilder) markFrom(m *set) *ruleBuilder {
	return r.ifExists(m).emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: m.name},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

// setPriorityFrom looks the loaded key up and puts the result, an id, in the packet's priority, where it does no harm for
// a moment: forwarding sets the priority again, and clearGroupID restores the initial one. A lookup keyed by another
// lookup's result would need no such place, but nft 1.0.6 aborts when it lists one.
func (r *ruleBuilder) setPriorityFrom(ids *set) *ruleBuilder {
	r.needs = append(r.needs, ids)
	return r.emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: ids.name},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

// setPriority puts the loaded id in the packet's priority.
func (r *ruleBuilder) setPriority() *ruleBuilder {
	return r.emit(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true})
}

func (r *ruleBuilder) clearGroupID() *ruleBuilder { return r.setMeta(expr.MetaKeyPRIORITY, 0) }

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE, which golang.org/x/sys/unix lacks

// change adds the loaded key to a set or refreshes it, or deletes it. The data of a map is the id in the packet's
// priority; deleting needs data too, and ignores it.
func (r *ruleBuilder) change(s *set, operation uint32, timeout time.Duration) *ruleBuilder {
	r.needs = append(r.needs, s)
	e := &expr.Dynset{SrcRegKey: unix.NFT_REG32_00, SetName: s.name, Operation: operation, Timeout: timeout}
	if s.data != nil {
		e.SrcRegData = r.reg
		r.groupID()
	}
	return r.emit(e)
}

// vmap looks the loaded key up in a map of verdicts.
func (r *ruleBuilder) vmap(m *set) *ruleBuilder {
	r.needs = append(r.needs, m)
	return r.emit(&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: m.name})
}
