package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// write sends the difference between tables and next: only what d names, or all of it if d is nil.
func (b *Backend) write(tables []*table, next *plan.Plan, d *plan.Delta) (err error) {
	defer func() {
		if failed := b.conn.Await(); err == nil {
			err = failed
		}
	}()
	txs := map[model.Family]*tx{}
	for _, t := range tables {
		t.large = len(next.Frontends) >= largePlan
		x := &tx{t: t}
		x.limit, x.softLimit = b.bounds()
		txs[t.family] = x
		if d != nil && d.Global == nil || t.unsupported && !usesFamily(next, t.family) {
			continue
		}
		if !t.present {
			t.create()
		}
		t.changeGlobals(x, encodeGlobals(&next.Global, t.family))
	}
	if err := b.commitBase(tables, txs, next); err != nil {
		return err
	}
	caps := b.Caps()
	writeOne := func(k plan.Key, f *plan.Frontend) error {
		x := txs[k.Family()]
		if x == nil {
			return nil
		}
		if f != nil && b.unprogrammed.waits(k) {
			return x.t.enterKept(x, k)
		}
		err := b.writeFrontend(x, k, f, &caps)
		if e := new(frontendError); errors.As(err, e) {
			// One that cannot be encoded keeps its state and does not delay the others.
			b.unprogrammed.add(k, err, time.Time{})
			return x.t.enterKept(x, k)
		}
		if err == nil {
			b.unprogrammed.remove(k)
		}
		return err
	}
	if d == nil {
		b.unprogrammed.retain(next)
		for _, k := range b.allKeys(next) {
			if k.Protocol == model.UDP && next.Frontends[k] == nil {
				b.removedUDP = append(b.removedUDP, k)
			}
			if err := writeOne(k, next.Frontends[k]); err != nil {
				return err
			}
		}
	} else {
		for _, c := range d.Changes {
			if t := txs[c.Key.Family()].t; c.New == nil || !b.unprogrammed.waits(c.Key) {
				t.detach(t.frontends[c.Key])
			}
		}
		for _, c := range d.Changes {
			if err := writeOne(c.Key, c.New); err != nil {
				return err
			}
		}
	}
	for _, t := range tables {
		if err := t.settleAddrs(txs[t.family]); err != nil {
			return err
		}
		if err := t.flushGroups(txs[t.family]); err != nil {
			return err
		}
		if err := t.sweepCounted(txs[t.family]); err != nil {
			return err
		}
		if err := txs[t.family].commit(); err != nil {
			return err
		}
		if err := t.deleteUnusedChains(); err != nil {
			return err
		}
	}
	return nil
}

// frontendError is about a frontend that cannot be encoded.
type frontendError struct{ error }

func (e frontendError) Unwrap() error { return e.error }

// bounds returns the maximum size of a transaction, and the size at which it is committed between two frontends.
func (b *Backend) bounds() (limit, soft int) {
	limit = max(min(b.conn.MaxTxBytes, nfnl.DefaultSendBuffer)-structureRoom, structureRoom/4)
	return limit, min(limit, softTxBytes)
}

// errNoIPv6 means that the kernel lacks IPv6 and the plan does not need it.
var errNoIPv6 = errors.New("the kernel has no nf_tables for IPv6")

// commitBase commits the global part of all families in one transaction, with the rules, so that transactions full of
// elements need no room for them.
func (b *Backend) commitBase(tables []*table, txs map[model.Family]*tx, next *plan.Plan) error {
	var list []*tx
	for _, t := range tables {
		list = append(list, txs[t.family])
	}
	err := commitTogether(b.conn, list...)
	unsupported := errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
	if t := b.tables[1]; unsupported && !t.unsupported && !usesFamily(next, t.family) {
		b.log.Warn("IPv6 is not available, programming IPv4 only", "err", err)
		t.unsupported = true
		return errNoIPv6
	}
	return err
}

// usesFamily reports whether a plan has anything for a family.
func usesFamily(p *plan.Plan, f model.Family) bool {
	for k := range p.Frontends {
		if k.Family() == f {
			return true
		}
	}
	g := encodeGlobals(&p.Global, f)
	return len(g.nodePortAddrs)+len(g.podSources)+len(g.serviceCIDRs)+len(g.noMasquerade) > 0
}

// soloSlots is the number of slots from which a frontend gets a transaction of its own, so that its whole change fits.
const soloSlots = 1000

// allKeys returns the sorted keys of all frontends in the plan or in the kernel.
func (b *Backend) allKeys(p *plan.Plan) []plan.Key {
	keys := make([]plan.Key, 0, len(p.Frontends))
	for k := range p.Frontends {
		keys = append(keys, k)
	}
	for _, t := range b.tables {
		for k := range t.frontends {
			if p.Frontends[k] == nil {
				keys = append(keys, k)
			}
		}
	}
	slices.SortFunc(keys, plan.Key.Compare)
	return keys
}

// writeFrontend adds to x what brings a frontend to f. Nil deletes it.
func (b *Backend) writeFrontend(x *tx, k plan.Key, f *plan.Frontend, caps *plan.Caps) error {
	t := x.t
	now := t.frontends[k]
	var counted, entered packedSlots
	if f != nil {
		counted, entered = countedEndpointsOf(f), enteredEndpointsOf(f) // of weight 0 too, and remote or not
		f = caps.StripInto(&b.stripped, f)
	}
	var want *elements
	if f != nil {
		before := now
		if before == nil {
			before = noElements
		}
		var err error
		if want, err = t.encode(f, before); err != nil {
			return frontendError{err}
		}
		want.counted, want.entered = counted, entered
	}
	if now == nil && want == nil {
		return nil
	}
	if want != nil && f.Affinity > 0 {
		if err := t.attach(want, now, f); err != nil {
			return frontendError{fmt.Errorf("nftables: %s: %w", f.Owner, err)}
		}
	}
	if x.bytes > 0 && (b.isolating || max(now.slots(), want.slots()) > soloSlots) {
		if err := x.commit(); err != nil {
			return err
		}
	}
	err := t.change(x, k, now, want)
	switch {
	case err != nil:
	case b.isolating:
		err = x.commit()
	case x.shouldCommit():
		err = x.commitLater()
	}
	if err != nil && b.isolating && isRejection(err) {
		return &rejection{k, err}
	}
	return err
}

// Bounds of a transaction. The kernel processes one under a lock, in some 4 µs per element. nfnl.Pacer reduces them
// where that takes longer.
const (
	// softTxBytes is the size at which a transaction is committed even if there is more to write. It takes some 5 ms.
	// Larger ones are no faster.
	softTxBytes = 128 << 10
	// structureRoom is reserved for rules that may have to be written in the same transaction.
	structureRoom = 160 << 10
)

func (b *Backend) resetStats() {
	for _, t := range b.tables {
		t.stats = txStats{}
	}
	b.conn.Pacer.Reset()
}

// report returns what was sent since resetStats.
func (b *Backend) report() backend.Report {
	r := backend.Report{Transactions: b.conn.Pacer.Transactions, Longest: b.conn.Pacer.Longest}
	for _, t := range b.tables {
		r.Messages += t.stats.messages
		r.Elements += t.stats.elements
	}
	return r
}

// load reads the kernel's state into the tables.
func (b *Backend) load(ctx context.Context) error {
	var mismatch [2]error
	gen, err := b.readConsistent(ctx, func() (err error) {
		for i, t := range b.tables {
			if mismatch[i], err = t.load(); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		b.gen = genTracker{started: true, distance: gen - b.knownCommits()}
	}
	b.countGuarded(b.tables[:]...)
	for i, t := range b.tables {
		if err == nil && mismatch[i] != nil {
			b.log.Warn("replacing nftables table", "table", t.String(), "reason", mismatch[i])
		}
	}
	return err
}

// familyNeeded reports whether a delta needs a table that the kernel was not able to create.
func (b *Backend) familyNeeded(d *plan.Delta) bool {
	return slices.ContainsFunc(b.tables[:], func(t *table) bool {
		return t.unsupported && slices.ContainsFunc(d.Changes, func(c plan.Change) bool { return c.New != nil && c.Key.Family() == t.family })
	})
}
