package nftables

import (
	"context"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// localhostChain refuses packets of the node to NodePorts of UDP and SCTP at loopback addresses. A datagram is rejected where it
// arrives, see refuseNodePortChains. An INIT is only counted: SCTP answers it with ABORT, which its client understands at once,
// while it repeats an INIT for minutes after an ICMP error. Replies to programs that have the number of a NodePort are not new.
func (r rulesetBuilder) localhostChain() chain {
	to := func(protocol byte) *ruleBuilder {
		return r.rule().interfaceType(expr.MetaKeyIIFTYPE, unix.ARPHRD_LOOPBACK).ctNew().daddr().in(r.localhostAddrs).
			l4proto(protocol).frontendKey(byNodePort).in(r.lookups[byNodePort].frontends).counter() // in the order of nft
	}
	c := r.hook(chainLocalhost, unix.NF_INET_LOCAL_IN, -1, to(unix.IPPROTO_UDP).reject(), to(unix.IPPROTO_SCTP))
	c.filter = true
	return c
}

// LocalhostRefused counts packets of the node to NodePorts at loopback addresses that were refused because of their protocol.
type LocalhostRefused struct{ UDP, SCTP uint64 }

// ReadLocalhostRefused reads the counters of IPv4 and IPv6, in the tables of either mode, with a socket of its own. They stay
// while sluice restarts, and start at 0 with their table or rules.
func ReadLocalhostRefused(ctx context.Context, netns int) (counts [2]LocalhostRefused, err error) {
	err = readRuleCounters(ctx, netns, chainLocalhost, func(family int, packets []uint64) {
		if len(packets) == 2 {
			counts[family] = LocalhostRefused{UDP: packets[0], SCTP: packets[1]}
		}
	})
	return counts, err
}
