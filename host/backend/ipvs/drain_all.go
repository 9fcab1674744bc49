package ipvs

import (
	"context"
	"errors"
	"fmt"
)

// DrainAll removes what this backend has programmed, after another backend has replaced it: destinations without
// connections, then virtual servers without destinations, then unused addresses. It returns how many virtual servers
// are left; call it periodically until there are none. With force it removes those with connections too.
//
// DrainAll does not touch the nftables rules: the nftables backend replaces them. For addresses that are still local,
// the reject tables take over the guards.
func DrainAll(ctx context.Context, o Options, force bool) (remaining int, err error) {
	w := &sweeper{o: o.withDefaults(), operation: "drain"}
	if err := w.rejectNew(); err != nil {
		return 0, err
	}
	_, err = w.sweep(ctx, func(h ipvsAPI, k serverKey) (bool, error) {
		if !force {
			if busy, err := drainServer(h, k); busy || err != nil {
				return busy, err
			}
		}
		return false, deleteIgnoringMissing(h, op{kind: opDelServer, key: k})
	})
	noIPVS := errors.Is(err, ErrNoIPVS)
	if noIPVS { // nothing needs the addresses
		if _, err := w.sweepLinks(); err != nil {
			return 0, err
		}
	}
	if err == nil || noIPVS {
		err = errors.Join(err, w.rejectNew())
	}
	return len(w.remaining), err
}

// drainServer deletes the destinations of a virtual server that have no connections, and reports whether any is left.
//
// Inactive connections count: those being established, half-closed ones, on which one side may still send, and UDP
// flows. Without packets they expire within two minutes, UDP within five.
//
// Destinations keep their weight. The nftables backend translates new connections before IPVS sees them, and with
// expire_nodest_conn a SYN retransmitted to a destination of weight 0 would end the connection being established.
func drainServer(h ipvsAPI, k serverKey) (busy bool, err error) {
	list, err := h.listDestinations(k)
	if err != nil {
		return false, fmt.Errorf("list real servers of virtual server %s: %w", k, withHint(err))
	}
	for _, d := range list {
		if d.active+d.inactive > 0 {
			busy = true
			continue
		}
		if err := deleteIgnoringMissing(h, op{kind: opDelDestination, key: k, destination: destination{addr: d.addr}}); err != nil {
			return busy, err
		}
	}
	return busy, nil
}
