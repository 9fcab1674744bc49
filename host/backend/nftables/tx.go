package nftables

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// tx is a transaction under construction for one table. Elements are grouped by set, so that a message has many.
type tx struct {
	t         *table
	touched   []*set
	bytes     int // estimated size
	limit     int // of bytes
	softLimit int // of bytes, between frontends
	owner     string

	// Of the sets that elements of one frontend, or others that belong together, are deleted from and added to: see endMove.
	leaves, enters []grace
	awaited        []grace // to be over before this is sent
}

func (x *tx) add(s *set, e nfnl.Element) {
	x.t.need(s)
	x.enters = s.grace.addTo(x.enters)
	if e.Jump != "" {
		x.enters = x.t.affinity.grace.addTo(x.enters)
	}
	x.put(s, &s.adds, e)
}

func (x *tx) del(s *set, e nfnl.Element) {
	x.leaves = s.grace.addTo(x.leaves)
	e.Data, e.Comment, e.Jump = nil, "", ""
	x.put(s, &s.dels, e)
}

func (x *tx) put(s *set, p *nfnl.ElementList, e nfnl.Element) {
	if s.dels.Empty() && s.adds.Empty() {
		x.touched = append(x.touched, s)
	}
	x.bytes += p.Add(e, x.owner)
}

// full reports whether nothing more fits.
func (x *tx) full() bool { return x.size() >= x.limit || x.t.conn.Pacer.Full(x.size()) }

// size is the estimated size with the rules that it needs, except for those that structureRoom is for.
func (x *tx) size() int { return x.bytes + x.t.affinity.newBytes }

// commitIfFull commits if nothing more fits.
func (x *tx) commitIfFull() error {
	if !x.full() {
		return nil
	}
	return x.commitLater()
}

// shouldCommit reports whether to commit after a complete frontend.
func (x *tx) shouldCommit() bool { return x.size() >= x.softLimit || x.full() }

// commit sends the transaction and clears it, after the rules that it needs where those come first. After an error the
// kernel has the old state, or, after nfnl.ErrReplyLost, one of the two.
func (x *tx) commit() error {
	x.t.flushRefs(x)
	if err := x.awaitRules(); err != nil {
		return err
	}
	return commitTogether(x.t.conn, x)
}

// commitLater is commit, except that the kernel may process the transaction while the next one is built. An error is that of the
// next commit. Rules, and what waits for them, are committed at once.
func (x *tx) commitLater() error {
	x.t.flushRefs(x)
	if x.endMove(); x.t.rulesDirty || len(x.awaited) > 0 {
		return x.commit()
	}
	out := nfnl.NewBatch(x.t.conn)
	if err := x.write(out); err != nil {
		return err
	}
	return out.CommitLater()
}

// commitTogether sends the transactions of several tables as one, with their rules. The masquerade bit needs that: it is
// in the rules and in a set.
func commitTogether(c *nfnl.Conn, txs ...*tx) error {
	for _, x := range txs {
		x.t.flushRefs(x)
	}
	out := nfnl.NewBatch(c)
	for _, x := range txs {
		if err := x.write(out); err != nil {
			return err
		}
	}
	err := out.Commit()
	for _, x := range txs {
		x.t.rulesCommitted() // after an error, too: nothing must wait for ever
	}
	return err
}

// write moves the transaction's messages to a batch.
func (x *tx) write(out *nfnl.Batch) error {
	count, elems := out.Count, out.Elements
	if err := x.writeRules(out); err != nil {
		return err
	}
	for _, s := range x.touched {
		out.PutElements(unix.NFT_MSG_DELSETELEM, x.t.Table, s.name, &s.dels, "delete")
	}
	for _, s := range x.touched {
		out.PutElements(unix.NFT_MSG_NEWSETELEM, x.t.Table, s.name, &s.adds, "add")
	}
	for _, s := range x.touched {
		s.dels.Reset()
		s.adds.Reset()
	}
	x.touched, x.bytes = x.touched[:0], 0
	x.leaves, x.enters, x.awaited = x.leaves[:0], x.enters[:0], x.awaited[:0]
	x.t.stats.messages += out.Count - count
	x.t.stats.elements += out.Elements - elems
	return nil
}

// writeRules moves new sets, chains and rules to a batch.
func (x *tx) writeRules(out *nfnl.Batch) error {
	if !x.t.rulesDirty {
		return nil
	}
	x.t.rulesDirty = false
	return x.t.writeStructure(out)
}

// nextGrace returns the grace period of the rules that are to be written.
func (t *table) nextGrace() grace {
	if t.grace == nil && t.forwards() {
		t.grace = make(grace)
	}
	return t.grace
}

// rulesCommitted begins the grace period of the rules that were written.
func (t *table) rulesCommitted() {
	if t.grace != nil {
		t.gracePeriods.begin(t.grace)
		t.grace = nil
	}
}

// endMove ends the elements that belong together. If they leave a set for one where only newer rules look, the transaction has to
// wait.
func (x *tx) endMove() {
	for _, g := range x.enters {
		if g != nil && slices.ContainsFunc(x.leaves, func(left grace) bool { return left != g }) {
			x.awaited = append(x.awaited, g)
		}
	}
	x.leaves, x.enters = x.leaves[:0], x.enters[:0]
}

// awaitRules commits new rules that the transaction has to wait for, and waits.
func (x *tx) awaitRules() error {
	x.endMove()
	if len(x.awaited) == 0 {
		return nil
	}
	if x.t.rulesDirty {
		out := nfnl.NewBatch(x.t.conn)
		if err := x.writeRules(out); err != nil {
			return err
		}
		x.t.stats.messages += out.Count
		err := out.Commit()
		x.t.rulesCommitted()
		if err != nil {
			return err
		}
	}
	for _, g := range x.awaited {
		<-g
	}
	x.t.stats.waits++
	x.awaited = x.awaited[:0]
	return nil
}

func (x *tx) toggle(s *set, key []byte, had, has bool) {
	switch {
	case had && !has:
		x.del(s, nfnl.Element{Key: key})
	case has && !had:
		x.add(s, nfnl.Element{Key: key})
	}
}

// changeList deletes values that are no longer wanted and adds new ones. elements returns the set and elements of a
// value.
func changeList[T comparable](x *tx, now, want []T, elements func(T) (*set, []nfnl.Element)) {
	for _, v := range without(now, want) {
		s, list := elements(v)
		for _, e := range list {
			x.del(s, e)
		}
	}
	for _, v := range without(want, now) {
		s, list := elements(v)
		for _, e := range list {
			x.add(s, e)
		}
	}
}

// without returns the elements of a list that another one does not have.
func without[T comparable](list, other []T) (out []T) {
	has := func(v T) bool { return slices.Contains(other, v) }
	if len(list)*len(other) > 100 {
		all := make(map[T]bool, len(other))
		for _, v := range other {
			all[v] = true
		}
		has = func(v T) bool { return all[v] }
	}
	for _, v := range list {
		if !has(v) {
			out = append(out, v)
		}
	}
	return out
}
