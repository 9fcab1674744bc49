package rules

import (
	"time"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

// Chains that count outcomes.
const (
	chainCountAttempt    = "count_attempt"
	chainCountAnswer     = "count_answer"
	chainRememberReply   = "remember_reply"
	chainRememberRefusal = "remember_refusal"
)

// outcomeChainNames are all of them, in the order in which they can be deleted.
var outcomeChainNames = []string{
	"outcomes_postrouting", "outcomes_input", "outcomes_prerouting", "outcomes_output",
	ipvsPrefix + chainCountAttempt, ipvsPrefix + chainCountAnswer,
	chainCountAttempt, chainCountAnswer, chainRememberReply, chainRememberRefusal,
}

// outcomesPriority is after conntrack (-200) and before any NAT (-100) and IPVS (-99), so that replies still come from the
// endpoint. Among the chains of type nat it is before those that choose a source address: no further chain sees such a packet.
const outcomesPriority = -150

// Timeouts of a connection in the set of flows.
const (
	// replyMemory is longer than the two seconds after which conntrack sets the status assured for a UDP flow with replies.
	replyMemory = 3 * time.Second
	// Those of conntrack for connections without a reply. Each further refusal begins them anew.
	refusalMemoryUDP = 30 * time.Second
	refusalMemory    = 2 * time.Minute
)

// Types of the first chunk of an SCTP packet, RFC 9260. An INIT ACK is alone in its packet.
const (
	sctpInitAck = 2
	sctpAbort   = 6
)

const (
	tcpSYN, tcpRST, tcpACK = 0x02, 0x04, 0x10
)

// outcomeChains returns the chains that count. Attempts are counted by chains of type nat, which see the first packet of a
// connection only, and replies by chains of type filter. Connections to an endpoint in the node's own namespace pass input
// and output in place of postrouting and prerouting.
func (r rulesetBuilder) outcomeChains() []chain {
	counters, flows := &r.outcomes.counters, r.outcomes.flows
	attempt := func(name string, hook int) chain {
		c := r.hook(name, hook, outcomesPriority, r.balancing.balanced(r.rule(), chainCountAttempt))
		c.counts = true
		return c
	}
	answer := func(name string, hook int) chain {
		// The first rule is all that a packet of an established connection passes. An answer that another rule of this node
		// gives in place of the endpoint belongs to a connection that is not confirmed and was not sent.
		c := r.hook(name, hook, outcomesPriority,
			r.rule().ctStatus(ctStatusAssured).ret(),
			r.balancing.balanced(r.rule().ctReply().ctStatus(ctStatusConfirmed), chainCountAnswer))
		c.counts, c.filter = true, true
		return c
	}
	return []chain{
		attempt("outcomes_postrouting", unix.NF_INET_POST_ROUTING),
		attempt("outcomes_input", unix.NF_INET_LOCAL_IN),
		answer("outcomes_prerouting", unix.NF_INET_PRE_ROUTING),
		answer("outcomes_output", unix.NF_INET_LOCAL_OUT),
		r.chain(chainCountAttempt, r.rule().frontendKey(byAddress).in(counters[attempts])),
		r.chain(chainCountAnswer,
			r.rule().tcpFlags(tcpSYN|tcpRST|tcpACK, tcpSYN|tcpACK).source().in(counters[answered]).ret(),
			// RFC 9293, 3.10.7.1: the sequence number of a reset that answers a SYN is zero.
			r.rule().tcpFlags(tcpSYN|tcpRST|tcpACK, tcpRST|tcpACK).tcpSequenceZero().source().in(counters[refused]).ret(),
			r.rule().l4proto(unix.IPPROTO_UDP).flow().in(flows).ret(),
			r.rule().l4proto(unix.IPPROTO_UDP).source().in(counters[answered]).gotoChain(chainRememberReply),
			r.rule().sctpChunk(sctpInitAck).source().in(counters[answered]).ret(),
			r.rule().sctpChunk(sctpAbort).source().in(counters[refused]).ret(),
			r.rule().unreachable().ctRelated().ctFlow().in(flows).gotoChain(chainRememberRefusal),
			r.rule().unreachable().ctRelated().ctEndpoint().in(counters[refused]).gotoChain(chainRememberRefusal)),
		// The counters at the end count connections for which there is no room.
		r.chain(chainRememberReply,
			r.rule().flow().change(flows, unix.NFT_DYNSET_OP_ADD, replyMemory).ret(),
			r.rule().counter()),
		r.chain(chainRememberRefusal,
			r.rule().ctProtocol(unix.IPPROTO_UDP).ctFlow().change(flows, unix.NFT_DYNSET_OP_UPDATE, refusalMemoryUDP).ret(),
			r.rule().ctProtocol(unix.IPPROTO_TCP).ctFlow().change(flows, unix.NFT_DYNSET_OP_UPDATE, refusalMemory).ret(),
			r.rule().ctProtocol(unix.IPPROTO_SCTP).ctFlow().change(flows, unix.NFT_DYNSET_OP_UPDATE, refusalMemory).ret(),
			r.rule().counter()),
	}
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

// ctEndpoint and ctFlow load the same keys for an ICMP error, whose addresses are others.
func (r *ruleBuilder) ctEndpoint() *ruleBuilder {
	return r.replyAddr(expr.CtKeySRCIP, expr.CtKeySRCIP6).loadCtProtocol().replyPort(expr.CtKeyPROTOSRC)
}

func (r *ruleBuilder) ctFlow() *ruleBuilder {
	return r.replyAddr(expr.CtKeySRCIP, expr.CtKeySRCIP6).replyPort(expr.CtKeyPROTOSRC).
		replyAddr(expr.CtKeyDSTIP, expr.CtKeyDSTIP6).replyPort(expr.CtKeyPROTODST).loadCtProtocol()
}

const ctDirectionReply = 1 // IP_CT_DIR_REPLY

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

// originalCtKey is originalKey, also for an ICMP error about the connection.
func (r *ruleBuilder) originalCtKey(l lookup) *ruleBuilder {
	if l == byAddress {
		r.originalDst()
	}
	return r.loadCtProtocol().originalPort(expr.CtKeyPROTODST)
}

// ctProtocol matches the protocol of a connection, also for an ICMP error about it.
func (r *ruleBuilder) ctProtocol(proto byte) *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeyPROTOCOL, Register: r.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{proto}},
	)
}

// ctReply matches packets in the direction of replies.
func (r *ruleBuilder) ctReply() *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: r.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: r.reg, Data: []byte{ctDirectionReply}},
	)
}

func (r *ruleBuilder) ctRelated() *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeySTATE, Register: r.reg},
		&expr.Bitwise{SourceRegister: r.reg, DestRegister: r.reg, Len: 4, Mask: native(expr.CtStateBitRELATED), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: r.reg, Data: native(0)},
	)
}

func (r *ruleBuilder) l4proto(proto byte) *ruleBuilder {
	return r.emit(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r.reg},
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
