package rules

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/model"
	"golang.org/x/sys/unix"
)

var _ backend.OutcomeCounter = (*Backend)(nil)

// maxOutcomeReads is how often a set of counters is read if a dump misses endpoints, because the kernel is resizing the
// set or another process is writing to nf_tables.
const maxOutcomeReads = 20

// ReadOutcomes implements backend.OutcomeCounter. It dumps the sets of counters, in an order in which no connection has an
// outcome without an attempt. The kernel walks a set from its beginning for each 32 KiB of a dump, some 30 ms for
// MaxCountedEndpoints: so the dumps have a socket of their own, and end as soon as ctx does.
func (b *Backend) ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error) {
	if !b.inSync {
		return nil, errors.New("nftables: read outcomes: the state of the tables is not known before an Apply succeeds")
	}
	conn, err := nfnl.Open(b.netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return nil, fmt.Errorf("nftables: read outcomes: %w", nfnl.Hint(err))
	}
	defer conn.Close()
	conn.AllowInconsistent = true // the number of endpoints tells
	conn.Interrupted = ctx.Err
	out := make(map[model.EndpointKey]backend.OutcomeCounters, b.tables[0].counted.listed+b.tables[1].counted.listed)
	for _, t := range b.tables {
		if t.counted.listed == 0 {
			continue
		}
		for _, o := range []outcome{refused, answered, attempts} {
			if err := t.readCounters(ctx, conn, o); err != nil {
				return nil, err
			}
		}
		for i := range t.counted.readings {
			if r := &t.counted.readings[i]; r.key.Addr.IsValid() {
				out[r.key] = r.counters
			}
		}
	}
	return out, nil
}

// reading is the counters of an endpoint in the kernel while they are read.
type reading struct {
	key      model.EndpointKey // zero: unused
	counters backend.OutcomeCounters
	seen     uint8 // bits by outcome
}

// UncountedEndpoints implements backend.OutcomeCounter: those beyond MaxCountedEndpoints.
func (b *Backend) UncountedEndpoints() (n int) {
	for _, t := range b.tables {
		n += len(t.counted.waiting.set)
	}
	return n
}

// warnUncounted logs when there begin or cease to be such endpoints.
func (b *Backend) warnUncounted() {
	n := b.UncountedEndpoints()
	if (n > 0) == b.uncounted || !b.inSync {
		return
	}
	if b.uncounted = n > 0; b.uncounted {
		b.log.Warn("outcomes of connections are not counted for all endpoints", "uncounted_endpoints", n, "limit_per_family", MaxCountedEndpoints)
	} else {
		b.log.Info("outcomes of connections are counted for all endpoints again")
	}
}

// readCounters reads a set of counters. Elements that another process added are ignored.
func (t *table) readCounters(ctx context.Context, conn *nfnl.Conn, o outcome) error {
	c := &t.counted
	s := t.outcomes.counters[o]
	for range maxOutcomeReads {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nftables: read outcomes: %w", err)
		}
		missing := c.listed
		for i := range c.readings {
			c.readings[i].seen &^= 1 << o
		}
		err := t.eachElementBy(conn, s, func(e []byte) {
			k, ok := t.countedKeyOf(nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
			v := c.refs[k]
			if !ok || v.inKernel == 0 {
				return
			}
			r := &c.readings[v.reading]
			if r.seen&(1<<o) == 0 {
				missing--
			}
			r.seen |= 1 << o
			*o.of(&r.counters) = packets(e)
		})
		if err != nil {
			return err
		}
		if missing == 0 {
			return nil
		}
	}
	return fmt.Errorf("nftables: read outcomes: set %s lacks endpoints: %w", s.name, nfnl.ErrInterrupted)
}

// of returns the counter of an outcome.
func (o outcome) of(c *backend.OutcomeCounters) *uint64 {
	switch o {
	case answered:
		return &c.Answered
	case refused:
		return &c.Refused
	}
	return &c.Attempts
}

// packets decodes the counter of an element, zero if it has none.
func packets(e []byte) uint64 {
	data := nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_EXPR), unix.NFTA_EXPR_DATA)
	if n := nfnl.Attr(data, unix.NFTA_COUNTER_PACKETS); len(n) >= 8 {
		return binary.BigEndian.Uint64(n)
	}
	return 0
}
