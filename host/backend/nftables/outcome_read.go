package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

var _ backend.OutcomeCounter = (*Backend)(nil)

// ReadOutcomes implements backend.OutcomeCounter. It dumps the sets of counters, in an order in which no connection has an
// outcome without an attempt. The kernel walks a set from its beginning for each 32 KiB of a dump, some 30 ms for
// MaxCountedEndpoints. So the dumps have a socket of their own, other calls write meanwhile, and they end as soon as ctx does.
func (b *Backend) ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error) {
	conn, err := nfnl.Open(b.netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return nil, fmt.Errorf("nftables: read outcomes: %w", nfnl.Hint(err))
	}
	defer conn.Close()
	conn.AllowInconsistent = true // what a dump misses is fetched
	conn.Interrupted = ctx.Err
	var readers []*counterReader
	err = b.locked(func() {
		for _, t := range b.tables {
			if t.counted.listed > 0 {
				readers = append(readers, newCounterReader(b, t, conn))
			}
		}
	})
	out := b.outcomes
	if clear(out); out == nil || len(readers) == 0 {
		out = map[model.EndpointKey]backend.OutcomeCounters{}
	}
	b.outcomes = out // for the next call: 4 MB of garbage for MaxCountedEndpoints, twice a second, would be collected every few seconds
	for _, r := range readers {
		if err == nil {
			err = r.read(ctx, out)
		}
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// locked calls f while no other call changes the tables, if their state is known.
func (b *Backend) locked(f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.inSync {
		return errors.New("nftables: read outcomes: the state of the tables is not known before an Apply succeeds")
	}
	f()
	return nil
}

// sinceBegin is the bit of reading.seen for endpoints that were in the kernel when the reading began.
const sinceBegin = 1 << outcomes

// UncountedEndpoints implements backend.OutcomeCounter: those beyond MaxCountedEndpoints.
func (b *Backend) UncountedEndpoints() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.uncountedEndpoints()
}

func (b *Backend) uncountedEndpoints() (n int) {
	for _, t := range b.tables {
		n += len(t.counted.waiting.set)
	}
	return n
}

// warnUncounted logs when there begin or cease to be such endpoints.
func (b *Backend) warnUncounted() {
	n := b.uncountedEndpoints()
	if (n > 0) == b.uncounted || !b.inSync {
		return
	}
	if b.uncounted = n > 0; b.uncounted {
		b.log.Warn("outcomes of connections are not counted for all endpoints", "uncounted_endpoints", n, "limit_per_family", MaxCountedEndpoints)
	} else {
		b.log.Info("outcomes of connections are counted for all endpoints again")
	}
}

// counterReader reads the counters of a table that other calls may change or replace meanwhile.
type counterReader struct {
	b     *Backend
	table *table // see Backend.locked
	from  tableReader
	sets  [outcomes]*set
	addr  int // bytes
	// counted is that of the table at the beginning. The table has another one if it was replaced.
	counted *countedEndpoints
}

func newCounterReader(b *Backend, t *table, conn *nfnl.Conn) *counterReader {
	for i := range t.counted.readings {
		t.counted.readings[i].seen = sinceBegin
	}
	return &counterReader{
		b: b, table: t, from: tableReader{t.Table, conn}, sets: t.outcomes.counters, addr: t.addr.bytes, counted: t.counted,
	}
}

// read adds the counters to out. Endpoints that come or leave meanwhile may be missing.
func (r *counterReader) read(ctx context.Context, out map[model.EndpointKey]backend.OutcomeCounters) error {
	var failed error
	for _, o := range []outcome{refused, answered, attempts} {
		if failed == nil {
			failed = r.readSet(ctx, o)
		}
	}
	err := r.b.locked(func() {
		if r.table.counted != r.counted {
			failed = nil
			return
		}
		for i := range r.counted.readings {
			v := &r.counted.readings[i]
			switch has := v.seen&allOutcomes == allOutcomes; {
			case !v.key.Addr.IsValid():
			case has:
				out[v.key] = v.counters
			case v.seen&sinceBegin != 0 && failed == nil:
				failed = fmt.Errorf("nftables: read outcomes: the sets of table %s lack %s, which another process has deleted", r.from.Name, v.key.Addr)
			}
		}
	})
	return cmp.Or(failed, err)
}

// readSet dumps a set. A dump misses elements if others leave the set or the kernel is resizing it: these are then fetched.
func (r *counterReader) readSet(ctx context.Context, o outcome) error {
	s := r.sets[o]
	var err error
	if dumpErr := r.from.eachList(s, func(list iter.Seq[[]byte]) {
		if err == nil {
			err = r.b.locked(func() { list(func(e []byte) bool { r.take(o, e); return true }) })
		}
	}); err != nil || dumpErr != nil {
		return cmp.Or(dumpErr, err)
	}
	var missing []model.EndpointKey
	if err := r.b.locked(func() {
		for i := range r.counted.readings {
			if v := &r.counted.readings[i]; v.key.Addr.IsValid() && v.seen&(1<<o) == 0 {
				missing = append(missing, v.key)
			}
		}
	}); err != nil {
		return err
	}
	f := r.from.fetcher(s)
	for _, k := range missing {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nftables: read outcomes: %w", err)
		}
		if err := f.request(1, func(e []byte) (ok bool) {
			err = cmp.Or(err, r.b.locked(func() { ok = r.take(o, e) }))
			return ok
		}); err != nil {
			return err
		}
		f.add(countedKey(k))
	}
	return cmp.Or(f.flush(), err)
}

// take stores the counter of an element. It ignores those that another process added.
func (r *counterReader) take(o outcome, e []byte) bool {
	k, ok := countedKeyOf(r.addr, nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
	v := r.counted.refs[k]
	if !ok || v.inKernel == 0 {
		return false
	}
	n := &r.counted.readings[v.reading]
	n.seen |= 1 << o
	*o.of(&n.counters) = packets(e)
	return true
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
