package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// Cleanup deletes the tables of this and other modes, and nothing else. It returns the names of those that existed.
func Cleanup(ctx context.Context, netns int) (removed []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("nftables: clean up: %w", err)
	}
	conn, err := nfnl.Open(netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", nfnl.Hint(err))
	}
	defer conn.Close()
	for _, family := range []model.Family{model.IPv4, model.IPv6} {
		for _, name := range []string{tableName, handoverName, rejectName, holdName} {
			t := nfnl.Table{Family: nfproto(family), Name: name}
			out := nfnl.NewBatch(conn)
			out.DeleteTable(t)
			switch err := out.Commit(); {
			case err == nil:
				removed = append(removed, "nftables table "+t.String())
			case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT):
				return removed, err
			}
		}
	}
	return removed, nil
}
