package rules

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

// chainLocalhost refuses what the proxy for NodePorts at loopback addresses does not serve.
const chainLocalhost = "localhost_input"

// localhostChain refuses packets of the node to NodePorts of UDP and SCTP at loopback addresses. A datagram is rejected where it arrives,
// see refuseNodePortChains. An INIT is only counted: SCTP answers it with ABORT, which its client understands at once, while it repeats an
// INIT for minutes after an ICMP error. Replies to programs that have the number of a NodePort are not new.
func (r rulesetBuilder) localhostChain() chain {
	to := func(protocol byte) *ruleBuilder {
		return r.rule().interfaceType(expr.MetaKeyIIFTYPE, unix.ARPHRD_LOOPBACK).ctState(expr.CtStateBitNEW).daddr().in(r.localhostAddrs).
			l4proto(protocol).frontendKey(byNodePort).in(r.lookups[byNodePort].frontends).counter() // in the order of nft
	}
	c := r.hook(chainLocalhost, unix.NF_INET_LOCAL_IN, -1, to(unix.IPPROTO_UDP).reject(), to(unix.IPPROTO_SCTP))
	c.filter = true
	return c
}

// LocalhostRefused counts packets of the node to NodePorts at loopback addresses that were refused because of their protocol.
type LocalhostRefused struct{ UDP, SCTP uint64 }

// ReadLocalhostRefused reads the counters of IPv4 and IPv6, in the tables of either mode, with a socket of its own. They stay while sluice
// restarts, and start at 0 with their table or rules.
func ReadLocalhostRefused(ctx context.Context, netns int) (counts [2]LocalhostRefused, err error) {
	err = readRuleCounters(ctx, netns, chainLocalhost, func(family int, packets []uint64) {
		if len(packets) == 2 {
			counts[family] = LocalhostRefused{UDP: packets[0], SCTP: packets[1]}
		}
	})
	return counts, err
}

// readRuleCounters calls put with the counters of a chain's rules, those of IPv4 and then those of IPv6.
func readRuleCounters(ctx context.Context, netns int, chain string, put func(family int, packets []uint64)) error {
	conn, err := nfnl.Open(netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return fmt.Errorf("nftables: %w", nfnl.Hint(err))
	}
	defer conn.Close()
	conn.AllowInconsistent, conn.Interrupted = true, ctx.Err
	for i, f := range []model.Family{model.IPv4, model.IPv6} {
		from := tableReader{tableName, conn, nfproto(f)}
		var rules []uint64
		err := conn.Dump(from.request(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, func(m *nfnl.Encoder) {
			m.PutString(unix.NFTA_RULE_CHAIN, chain)
		}), func(b []byte) {
			b = b[4:]
			if nfnl.Text(nfnl.Attr(b, unix.NFTA_RULE_TABLE)) == tableName && nfnl.Text(nfnl.Attr(b, unix.NFTA_RULE_CHAIN)) == chain {
				rules = append(rules, rulePackets(nfnl.Attr(b, unix.NFTA_RULE_EXPRESSIONS)))
			}
		})
		if err != nil && err != unix.ENOENT && err != unix.EAFNOSUPPORT && err != unix.EOPNOTSUPP {
			return fmt.Errorf("nftables: list rules: %w", nfnl.Hint(err))
		}
		put(i, rules)
	}
	return nil
}

// rulePackets decodes the counter among the expressions of a rule, zero if it has none.
func rulePackets(exprs []byte) uint64 {
	for _, e := range nfnl.Attrs(exprs) {
		if nfnl.Text(nfnl.Attr(e, unix.NFTA_EXPR_NAME)) == "counter" {
			return counterPackets(nfnl.Attr(e, unix.NFTA_EXPR_DATA))
		}
	}
	return 0
}

// counterPackets decodes the packets of a counter, zero if there is none.
func counterPackets(data []byte) uint64 {
	if n := nfnl.Attr(data, unix.NFTA_COUNTER_PACKETS); len(n) >= 8 {
		return binary.BigEndian.Uint64(n)
	}
	return 0
}
