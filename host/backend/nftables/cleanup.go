package nftables

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Cleanup removes both tables, and nothing else, and names those that were there.
func Cleanup(ctx context.Context, o Options) (removed []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("nftables: clean up: %w", err)
	}
	conn, err := openSocket(o.Netns, defaultSendBuffer)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", hint(err))
	}
	defer conn.close()
	for i, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		out := &batch{seq: &conn.seq}
		out.mark(unix.NFNL_MSG_BATCH_BEGIN)
		out.message(unix.NFT_MSG_DELTABLE, unix.NLM_F_ACK, family, "delete table", tableName)
		out.str(unix.NFTA_TABLE_NAME, tableName)
		out.end()
		last := out.seqNow()
		out.mark(unix.NFNL_MSG_BATCH_END)
		failed, err := conn.transact(out.buf, last)
		if err == nil && len(failed) > 0 {
			switch failed[0].errno {
			case unix.ENOENT, unix.EAFNOSUPPORT:
				continue
			}
		}
		if err != nil || len(failed) > 0 {
			return removed, out.explain(failed, err)
		}
		removed = append(removed, "nftables table "+[]string{"ip ", "ip6 "}[i]+tableName)
	}
	return removed, nil
}
