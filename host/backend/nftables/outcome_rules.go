package nftables

import (
	"golang.org/x/sys/unix"
)

// outcomesPriority is after conntrack (-200) and before any NAT (-100) and IPVS (-99), so that replies still come from the
// endpoint. Among the chains of type nat it is before those that choose a source address: no further chain sees such a packet.
const outcomesPriority = -150

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
