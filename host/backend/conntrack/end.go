package conntrack

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// endedPerCall is how many connections are ended together.
const endedPerCall = 500

// picked is a connection to end. Its entry is deleted by its addresses, and only if it is still the same one: the client may have
// used its port again.
type picked struct {
	conn plan.Connection
	hash uint32 // of a shed
	id   uint32
	tcp  bool   // to be answered with RST
	what string // attributes that identify the entry
}

func pickEntry(c *flowEntry, hash uint32) picked {
	return picked{plan.Connection{Client: c.client, Frontend: c.frontend}, hash, c.id, c.continues(), c.identity()}
}

// end deletes the entries of connections of a family, in order, after the data plane has been told of the TCP connections among
// them. It returns how many entries existed, and how many connections need not be passed again.
//
// If the data plane cannot be told, the entries are deleted nevertheless: most connections meet another endpoint, which resets
// them.
func (t *Table) end(ctx context.Context, f model.Family, list []picked, tcp backend.Resetter) (n plan.ResetCount, done int, err error) {
	var errs []error
	for chunk := range slices.Chunk(list, endedPerCall) {
		left, err := resetTCP(ctx, chunk, tcp)
		n.Uncertain += left
		errs = append(errs, err)
		for _, p := range chunk {
			if err := ctx.Err(); err != nil {
				return n, done, errors.Join(append(errs, fmt.Errorf("conntrack: delete entries: %w", err))...)
			}
			switch err := deleteEntry(f, p.id, p.what); {
			case err == nil:
				n.Connections++
			case !errors.Is(err, unix.ENOENT): // it has expired
				return n, done, errors.Join(append(errs, fmt.Errorf("conntrack: delete an entry: %w", err))...)
			}
			done++
		}
	}
	return n, done, errors.Join(errs...)
}

// resetTCP passes the TCP connections of a list to the data plane, unless it resets all connections without an entry: tcp is nil.
func resetTCP(ctx context.Context, list []picked, tcp backend.Resetter) (left int, err error) {
	if tcp == nil {
		return 0, nil
	}
	var known []plan.Connection
	for _, p := range list {
		if p.tcp {
			known = append(known, p.conn)
		}
	}
	if len(known) == 0 {
		return 0, nil
	}
	return tcp.ResetTCP(ctx, known)
}
