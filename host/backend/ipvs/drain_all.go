package ipvs

import (
	"context"
	"errors"
	"fmt"
)

// DrainAll lets what this backend has programmed run out, when another backend has taken its place: members go with their
// virtual servers and addresses once they have no connections. It tells how many virtual servers
// are left; call it from time to time until there are none. With force those that have connections go too. The
// companion's tables are not looked at: the nftables backend replaces them. What they did for addresses that are still
// here, leavingTable does.
func DrainAll(ctx context.Context, o Options, force bool) (left int, err error) {
	r := &sweeper{o: o, operation: "retire"}
	if err := r.rejectNew(); err != nil {
		return 0, err
	}
	_, err = r.sweep(ctx, func(h ipvsAPI, k serverKey) (bool, error) {
		if !force {
			if busy, err := drainServer(h, k); busy || err != nil {
				return busy, err
			}
		}
		return false, deleteIgnoringMissing(h, op{kind: opDelServer, key: k})
	})
	without := errors.Is(err, ErrNoIPVS) // then nothing needs the addresses
	if without {
		if _, lerr := r.sweepLinks(); lerr != nil {
			return 0, lerr
		}
	}
	if err == nil || without {
		err = errors.Join(err, r.rejectNew())
	}
	return len(r.remaining), err
}

// drainServer takes away the members of one virtual server that have no connections; it tells whether others stay. Nothing
// new comes to those, as the nftables backend translates before IPVS sees a packet, so their weight stays: with
// expire_nodest_conn a SYN that is sent again to a member of weight 0 ends the connection that is just being made. What
// counts as inactive counts too: connections that are just being made, those that one side has closed, on which the
// other may send for long, and flows of UDP. Without packets they end in two minutes, and UDP in five.
func drainServer(h ipvsAPI, k serverKey) (busy bool, err error) {
	list, err := h.listDestinations(k)
	if err != nil {
		return false, fmt.Errorf("list the members of virtual server %s: %w", k, withHint(err))
	}
	for _, m := range list {
		if m.active+m.inactive > 0 {
			busy = true
			continue
		}
		if err := deleteIgnoringMissing(h, op{kind: opDelDestination, key: k, destination: destination{addr: m.addr}}); err != nil {
			return busy, err
		}
	}
	return busy, nil
}
