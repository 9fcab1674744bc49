package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// DeleteUnreplied deletes the entries of connections through the given frontends to the given endpoints that have had no answer,
// and returns their number. Without an entry, the next packet of the client is balanced again: a repeated SYN, or a new
// connection from a port that the client uses again. The table is listed once, streamed; memory does not depend on its size.
func (t *Table) DeleteUnreplied(ctx context.Context, to []plan.Reset) (n int, err error) {
	wanted, family := make(map[plan.Reset]bool, len(to)), byte(0)
	for i, r := range to {
		wanted[r] = true
		if f := familyOf(r.Frontend.Family()); i == 0 || f == family {
			family = f
		} else {
			family = unix.AF_UNSPEC // both: most of the time goes into walking the table
		}
	}
	var failed error
	err = listMatching(ctx, dumpRequest(family, 0, statusSeenReply), func(c *flowEntry) {
		if failed != nil || !c.unreplied() || !lookUpFlow(wanted, c) {
			return
		}
		deleted, err := deleteUnreplied(model.FamilyOf(c.endpoint.Addr()), c)
		if failed = err; deleted {
			n++
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return n, fmt.Errorf("conntrack: delete entries without a reply: %w", err)
	}
	return n, nil
}

// deleteUnreplied deletes an entry that was listed, unless a reply has come since, or the client has used its port for another
// endpoint.
func deleteUnreplied(f model.Family, c *flowEntry) (deleted bool, err error) {
	identity := c.identity()
	now, err := getEntry(f, identity)
	if err == nil && !now.unreplied() {
		return false, nil
	}
	if err == nil {
		err = deleteEntry(f, now.id, identity)
	}
	if errors.Is(err, unix.ENOENT) { // it has expired
		return false, nil
	}
	return err == nil, err
}
