package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// readRuleCounters calls put with the counters of a chain's rules, those of IPv4 and then those of IPv6.
func readRuleCounters(ctx context.Context, netns int, chain string, put func(family int, packets []uint64)) error {
	conn, err := nfnl.Open(netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return fmt.Errorf("nftables: %w", nfnl.Hint(err))
	}
	defer conn.Close()
	conn.AllowInconsistent, conn.Interrupted = true, ctx.Err
	for i, f := range []model.Family{model.IPv4, model.IPv6} {
		var rules []uint64
		err := conn.Rules(nfnl.Table{Family: nfproto(f), Name: tableName}, chain, func(r nfnl.Rule) { rules = append(rules, rulePackets(r.Exprs)) })
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		put(i, rules)
	}
	return nil
}

// rulePackets decodes the counter among the expressions of a rule, zero if it has none.
func rulePackets(exprs []byte) uint64 {
	for name, data := range nfnl.Exprs(exprs) {
		if name == "counter" {
			return counterPackets(data)
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

// packets decodes the counter of an element, zero if it has none.
func packets(e []byte) uint64 {
	return counterPackets(nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_EXPR), unix.NFTA_EXPR_DATA))
}
