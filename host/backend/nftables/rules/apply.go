package rules

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// Apply brings the kernel to next. With a delta it looks at nothing but that; without one, or after an error, it
// reads what the kernel has and writes what differs.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	for _, t := range b.tables {
		t.sent = sent{}
	}
	b.conn.Pacer.Reset()
	var again time.Duration
	err := ctx.Err()
	if err == nil {
		whole := d == nil || !b.trusted || b.comesUp(d)
		if whole {
			err = b.adopt(ctx)
		}
		if err == nil {
			b.trusted = false // until it is through
			if whole {
				err = b.handOver(next)
			}
			if err == nil {
				err = b.write(b.tables[:], next, d, whole)
			}
		}
		if errors.Is(err, errNoIPv6) {
			if err = b.adopt(ctx); err == nil {
				err = b.write(b.tables[:], next, nil, true)
			}
		}
		if err == nil {
			again, err = b.forgetClients()
		}
		b.trusted = err == nil
	}
	r := backend.Report{RequeueAfter: again, Transactions: b.conn.Pacer.Transactions, Longest: b.conn.Pacer.Longest}
	for _, t := range b.tables {
		r.Messages += t.sent.messages
		r.Elements += t.sent.elements
	}
	return r, err
}

// comesUp tells whether a delta needs a table that the kernel was not able to have.
func (b *Backend) comesUp(d *plan.Delta) bool {
	return slices.ContainsFunc(b.tables[:], func(t *table) bool {
		return t.absent && slices.ContainsFunc(d.Changes, func(c plan.Change) bool { return c.New != nil && c.Key.Family() == t.family })
	})
}

// adopt reads the kernel's state into the mirror.
func (b *Backend) adopt(ctx context.Context) error {
	var foreign [2]error
	err := b.steady(ctx, func() (err error) {
		for i, t := range b.tables {
			if foreign[i], err = t.load(); err != nil {
				return err
			}
		}
		return nil
	})
	b.clients.adopted = true
	b.adoptGuards(b.tables[:]...)
	for i, t := range b.tables {
		if err == nil && foreign[i] != nil {
			b.log.Warn("replacing a table", "table", t.label(), "reason", foreign[i])
		}
	}
	return err
}

// write sends what differs between the mirror of some tables and next: everything, or only what d names.
func (b *Backend) write(tables []*table, next *plan.Plan, d *plan.Delta, whole bool) error {
	txs := map[model.Family]*tx{}
	for _, t := range tables {
		t.large = len(next.Frontends) >= many
		x := &tx{t: t}
		x.limit, x.enough = b.bounds()
		txs[t.family] = x
		if !whole && d.Global == nil || t.absent && !needs(next, t.family) {
			continue
		}
		if !t.present {
			t.create()
		}
		t.changeGlobals(x, lowerGlobal(&next.Global, t.family))
	}
	if err := b.commitBase(tables, txs, next); err != nil {
		return err
	}
	caps := b.Caps()
	// A frontend that cannot be written stays as it is, and the others are not kept waiting.
	var bad []error
	each := func(k plan.Key, f *plan.Frontend) error {
		x := txs[k.Family()]
		if x == nil {
			return nil
		}
		err := b.writeFrontend(x, k, f, caps)
		var e errFrontend
		if errors.As(err, &e) {
			bad = append(bad, err)
			return nil
		}
		return err
	}
	if !whole {
		for _, c := range d.Changes {
			t := txs[c.Key.Family()].t
			t.release(t.frontends[c.Key])
		}
	}
	if whole {
		for _, k := range b.everyKey(next) {
			if err := each(k, next.Frontends[k]); err != nil {
				return err
			}
		}
	} else {
		for _, c := range d.Changes {
			if err := each(c.Key, c.New); err != nil {
				return err
			}
		}
	}
	for _, t := range tables {
		t.uncounted = false
		if t.settleOwners(txs[t.family]) {
			b.clients.check = true
		}
		if err := txs[t.family].commit(); err != nil {
			return err
		}
	}
	return errors.Join(bad...)
}

// errFrontend is about a frontend that no plan should have.
type errFrontend struct{ error }

func (e errFrontend) Unwrap() error { return e.error }

// bounds are how large a transaction may get, and from when on it is committed.
func (b *Backend) bounds() (limit, soft int) {
	limit = max(min(b.conn.MaxTxBytes, nfnl.DefaultSendBuffer)-structureRoom, structureRoom/4)
	return limit, min(limit, enough)
}

// errNoIPv6 is about a kernel without IPv6 and a plan that does not need it.
var errNoIPv6 = errors.New("the kernel has no nf_tables for IPv6")

// commitBase commits the global parts, all families' in one transaction, and the rules: so transactions full of
// elements need not have room for them.
func (b *Backend) commitBase(tables []*table, txs map[model.Family]*tx, next *plan.Plan) error {
	var list []*tx
	for _, t := range tables {
		list = append(list, txs[t.family])
	}
	err := commit(b.conn, list...)
	unsupported := errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
	if t := b.tables[1]; unsupported && !t.absent && !needs(next, t.family) {
		b.log.Warn("going without IPv6", "reason", err)
		t.absent = true
		return errNoIPv6
	}
	return err
}

// needs tells whether a plan has anything for a family.
func needs(p *plan.Plan, f model.Family) bool {
	for k := range p.Frontends {
		if k.Family() == f {
			return true
		}
	}
	g := lowerGlobal(&p.Global, f)
	return len(g.nodePortAddrs)+len(g.podSources)+len(g.serviceCIDRs) > 0
}

// alone is from how many slots on a frontend does not share a transaction with others before it, so that all of its
// change fits.
const alone = 1000

// everyKey gives the keys of all frontends that the plan or the kernel has.
func (b *Backend) everyKey(p *plan.Plan) []plan.Key {
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

// writeFrontend puts into x what brings a frontend to f; nil removes it.
func (b *Backend) writeFrontend(x *tx, k plan.Key, f *plan.Frontend, caps plan.Caps) error {
	t := x.t
	now := t.frontends[k]
	if f != nil {
		f, _ = plan.NormalizeFrontend(f, caps)
	}
	var want *held
	if f != nil {
		before := now
		if before == nil {
			before = nothing
		}
		var err error
		if want, err = t.lower(f, before); err != nil {
			return errFrontend{err}
		}
	}
	if now == nil && want == nil {
		return nil
	}
	if want != nil && f.Affinity > 0 {
		t.stick(want, now, f)
	}
	if x.bytes > 0 && max(now.slots(), want.slots()) > alone {
		if err := x.commit(); err != nil {
			return err
		}
	}
	if err := t.change(x, k, now, want); err != nil {
		return err
	}
	if x.ripe() {
		return x.commit()
	}
	return nil
}
