package rules

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// replaceTables leads every table through its handover.
func (b *Backend) replaceTables(next *plan.Plan) error {
	for _, t := range b.tables {
		if err := b.replaceTable(t, next); err != nil {
			return err
		}
	}
	return nil
}

// replaceTable has our table take the place of another under its name: one of another version or mode, or one that somebody
// has changed. It is filled beside what forwards, in transactions as small as those of any start:
//
//	tableName     other  other        other    –     filling  filled  ours
//	handoverName  –      filling      filled   ours  ours     ours    –
//	forwards      other  other        both     ours  ours     both    ours
//
// Where both forward, the one that came last is asked first, and what it does not know is asked of the other. A table
// gets its base chains, without which no packet passes it, when it is whole. So in any of these states, whoever was
// killed in it, what has base chains is left to forward, and the other is filled anew.
func (b *Backend) replaceTable(t *table, next *plan.Plan) error {
	switch {
	case !t.replacing:
		return b.removeTable(t, &t.atHandover) // a handover was ended just before its last step
	case t.atHandover.forwards():
	case t.atName.forwards():
		if err := b.fill(t, &t.atHandover, &t.atName, next); err != nil {
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
	if err := b.fill(t, &t.atName, &t.atHandover, next); err != nil {
		return err
	}
	t.replacing = false
	return nil
}

// fill makes the table under a name, lets it forward when it is whole, and takes the other one away.
func (b *Backend) fill(t *table, at, from *tableState, next *plan.Plan) error {
	if err := b.removeTable(t, at); err != nil {
		return err
	}
	t.reset()
	b.countGuarded(t)
	t.name, t.hooked = at.name, false
	var bad frontendError // what cannot be written is told of at the end
	if err := b.write([]*table{t}, next, nil, true); err != nil && !errors.As(err, &bad) {
		return err
	}
	at.there = true
	out := nfnl.NewBatch(t.conn)
	t.hooked = true
	if err := t.writeStructure(out); err != nil {
		return err
	}
	left := *from
	if t.balancing.traits().exclusive {
		// It passes connections on, and the other would take those for its own, with the marks that they have got.
		t.deleteBaseChains(out, &left)
	}
	t.stats.messages += out.Count
	if err := out.Commit(); err != nil {
		return err
	}
	for _, c := range t.wantedChains() {
		if c.hook >= 0 {
			at.hooks = append(at.hooks, c.name)
		}
	}
	*from = left
	return b.removeTable(t, from)
}

// rcuBarrier waits until no packet is looked at any more that began to be before. A packet has the list of base chains and
// their rules from when it came to a hook, but reads sets and maps as they are.
func rcuBarrier() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL: a grace period of RCU, some 20 ms
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(50 * time.Millisecond) // with nohz_full or a seccomp filter; a packet takes microseconds
	}
}

// removeTable deletes a table. First it stops to forward, so that packets on their way through it find all of it.
func (b *Backend) removeTable(t *table, s *tableState) error {
	if !s.there {
		return nil
	}
	if s.forwards() {
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
	out.DeleteTable(t.nfproto, s.name)
	t.stats.messages += out.Count
	if err := out.Commit(); err != nil {
		return err
	}
	s.there = false
	return nil
}

// deleteBaseChains deletes the base chains of a table.
func (t *table) deleteBaseChains(out *nfnl.Batch, s *tableState) {
	for _, name := range s.hooks {
		out.Message(unix.NFT_MSG_DELCHAIN, 0, t.nfproto, fmt.Sprintf("delete in table %s chain", s.name), name)
		out.PutString(unix.NFTA_CHAIN_TABLE, s.name)
		out.PutString(unix.NFTA_CHAIN_NAME, name)
		out.End()
	}
	s.hooks = nil
}
