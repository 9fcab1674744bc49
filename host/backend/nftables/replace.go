package nftables

import (
	"context"
	"errors"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// replaceTables replaces the tables that need it.
func (b *Backend) replaceTables(ctx context.Context, next *plan.Plan) error {
	for _, t := range b.tables {
		if err := b.replaceTable(ctx, t, next); err != nil {
			return err
		}
	}
	return nil
}

// replaceTable replaces a table under our name that has another version or mode, or that another process changed. Its
// successor is filled next to the table that forwards, in transactions as small as at a first start:
//
//	tableName     other  other        other    –     filling  filled  ours
//	handoverName  –      filling      filled   ours  ours     ours    –
//	forwards      other  other        both     ours  ours     both    ours
//
// Where both forward, the newer one is evaluated first, and packets that it does not know pass on to the other. A table
// gets the base chains for new connections when it is complete. So in any of these states, after a crash, a table that
// forwards stays, and the other one is filled again.
//
// With session affinity, a filled table first gets the base chains that balanced connections pass, so that both tables
// record the clients of all connections from then on. Then it gets the clients that the other one has recorded before,
// and forwards: no client loses its endpoint.
func (b *Backend) replaceTable(ctx context.Context, t *table, next *plan.Plan) error {
	switch {
	case !t.replacing:
		return b.removeTable(t, &t.atHandover) // the last replacement was stopped before its last step
	case t.atHandover.forwards():
	case t.atName.forwards():
		if err := b.fill(ctx, t, &t.atHandover, &t.atName, next); err != nil {
			return err
		}
	default:
		// Nothing forwards, so nothing is lost by filling the table as at a first start.
		if err := errors.Join(b.removeTable(t, &t.atName), b.removeTable(t, &t.atHandover)); err != nil {
			return err
		}
		t.reset()
		b.countGuarded(t)
		t.replacing = false
		return nil
	}
	if err := b.fill(ctx, t, &t.atName, &t.atHandover, next); err != nil {
		return err
	}
	t.replacing = false
	return nil
}

// fill fills the table with a name, lets it forward when it is complete, and removes the other one.
func (b *Backend) fill(ctx context.Context, t *table, at, from *tableState, next *plan.Plan) error {
	if err := b.removeTable(t, at); err != nil {
		return err
	}
	t.reset()
	b.countGuarded(t)
	t.Name, t.hooks = at.name, unhooked
	if err := b.write([]*table{t}, next, nil); err != nil {
		return err
	}
	at.exists = true
	if err := b.carryResets(ctx, t, from); err != nil {
		return err
	}
	if t.hasAffinity() {
		if err := t.hook(at, learning, nil); err != nil {
			return err
		}
		rcuBarrier() // packets keep the base chains that they found
		if err := b.carryClients(ctx, t, from); err != nil {
			return err
		}
	}
	left := *from
	if err := t.hook(at, forwarding, &left); err != nil {
		return err
	}
	*from = left
	return b.removeTable(t, from)
}

// hook commits the base chains of a stage.
func (t *table) hook(at *tableState, stage hookStage, other *tableState) error {
	out := nfnl.NewBatch(t.conn)
	t.hooks = stage
	if err := t.writeStructure(out); err != nil {
		return err
	}
	if other != nil && t.balancing.traits().exclusive {
		// It hands connections off, and the other table would process them too, with their pool marks.
		t.deleteBaseChains(out, other)
	}
	t.stats.messages += out.Count
	if err := out.Commit(); err != nil {
		return err
	}
	at.hooks = nil
	for _, c := range t.wantedChains() {
		if c.hook >= 0 {
			at.hooks = append(at.hooks, c.name)
		}
	}
	return nil
}

// removeTable deletes a table, its base chains first, so that packets on their way through it find all of it.
func (b *Backend) removeTable(t *table, s *tableState) error {
	if !s.exists {
		return nil
	}
	if len(s.hooks) > 0 {
		rcuBarrier()
		out := nfnl.NewBatch(t.conn)
		t.deleteBaseChains(out, s)
		t.stats.messages += out.Count
		if err := out.Commit(); err != nil {
			return err
		}
	}
	rcuBarrier()
	out := nfnl.NewBatch(t.conn)
	out.DeleteTable(nfnl.Table{Family: t.Family, Name: s.name})
	t.stats.messages += out.Count
	if err := out.Commit(); err != nil {
		return err
	}
	s.exists = false
	return nil
}

// deleteBaseChains deletes the base chains of a table.
func (t *table) deleteBaseChains(out *nfnl.Batch, s *tableState) {
	for _, name := range s.hooks {
		out.DeleteChain(nfnl.Table{Family: t.Family, Name: s.name}, name)
	}
	s.hooks = nil
}
