package nftables

import (
	"fmt"
	"net"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
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

// protocols are those of frontends. nft loads some rules only if they match one first: nft 1.0.6 those with a port before DNAT in
// a key, and all versions those that translate to a port from a map without the port in its key.
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

// markBits loads some bits of the packet mark.
func (r *ruleBuilder) markBits(mask uint32) *ruleBuilder {
	at := r.reg
	r.load(&expr.Meta{Key: expr.MetaKeyMARK, Register: at}, 4)
	r.exprs = append(r.exprs, &expr.Bitwise{SourceRegister: at, DestRegister: at, Len: 4, Mask: native(mask), Xor: native(0)})
	return r
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

// encode returns the expressions of a rule as attributes.
func (w *ruleBuilder) encode() ([]byte, error) {
	var b []byte
	for _, e := range w.exprs {
		v, err := expr.Marshal(nfproto(w.family), e)
		if err != nil {
			return nil, fmt.Errorf("encode a rule: %T: %w", e, err)
		}
		b = nfnl.AppendAttr(b, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, v)
	}
	return b, nil
}

// groupID loads the id in the packet's priority, groupOfID that of its group.
func (r *ruleBuilder) groupID() *ruleBuilder {
	return r.load(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: r.reg}, 4)
}

func (r *ruleBuilder) groupOfID() *ruleBuilder {
	at := r.reg
	r.groupID()
	r.exprs = append(r.exprs, &expr.Bitwise{
		SourceRegister: at, DestRegister: at, Len: 4, Mask: native(^uint32(maxAffinityID)), Xor: native(0),
	})
	return r
}

// client loads the key of the sets of clients, see schema.clientKey.
func (r *ruleBuilder) client(addr, group func(*ruleBuilder) *ruleBuilder) *ruleBuilder {
	if r.family == model.IPv6 {
		return addr(group(r))
	}
	return group(addr(r))
}

func (r *ruleBuilder) sport() *ruleBuilder {
	return r.load(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: r.reg, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2,
	}, 2)
}

// source loads the key of the endpoint that sent a packet.
func (r *ruleBuilder) source() *ruleBuilder { return r.saddr().proto().sport() }

// flow loads the key of the connection of a reply.
func (r *ruleBuilder) flow() *ruleBuilder { return r.saddr().sport().daddr().dport().proto() }

// connection loads the key of a client's packet in the set of resets.
func (r *ruleBuilder) connection() *ruleBuilder { return r.saddr().sport().daddr().dport() }

// ctEndpoint and ctFlow load the same keys for an ICMP error, whose addresses are others.
func (r *ruleBuilder) ctEndpoint() *ruleBuilder {
	return r.replyAddr(expr.CtKeySRCIP, expr.CtKeySRCIP6).loadCtProtocol().replyPort(expr.CtKeyPROTOSRC)
}

func (r *ruleBuilder) ctFlow() *ruleBuilder {
	return r.replyAddr(expr.CtKeySRCIP, expr.CtKeySRCIP6).replyPort(expr.CtKeyPROTOSRC).
		replyAddr(expr.CtKeyDSTIP, expr.CtKeyDSTIP6).replyPort(expr.CtKeyPROTODST).loadCtProtocol()
}

func (r *ruleBuilder) replyAddr(key4, key6 expr.CtKey) *ruleBuilder {
	if r.family == model.IPv6 {
		return r.load(&expr.Ct{Key: key6, Register: r.reg, Direction: ctDirectionReply}, 16)
	}
	return r.load(&expr.Ct{Key: key4, Register: r.reg, Direction: ctDirectionReply}, 4)
}

func (r *ruleBuilder) replyPort(key expr.CtKey) *ruleBuilder {
	return r.load(&expr.Ct{Key: key, Register: r.reg, Direction: ctDirectionReply}, 2)
}

func (r *ruleBuilder) loadCtProtocol() *ruleBuilder {
	return r.load(&expr.Ct{Key: expr.CtKeyPROTOCOL, Register: r.reg}, 1)
}

// originalConnection loads the connection as its client sees it. The rule has to match the protocol first, by ctProtocol.
func (r *ruleBuilder) originalConnection() *ruleBuilder {
	return r.originalSrc().originalPort(expr.CtKeyPROTOSRC).originalDst().originalPort(expr.CtKeyPROTODST)
}

const ctDirectionReply = 1 // IP_CT_DIR_REPLY

// originalCtKey is originalKey, also for an ICMP error about the connection.
func (r *ruleBuilder) originalCtKey(l lookup) *ruleBuilder {
	if l == byAddress {
		r.originalDst()
	}
	return r.loadCtProtocol().originalPort(expr.CtKeyPROTODST)
}
