package rules

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of one message of elements. The list's length is 16 bits wide; what does not fit is lost without a word.
const (
	maxListBytes    = 60_000
	maxListElements = 1000
)

// pending is what one transaction is about to do to a set, encoded as elements, cut into messages.
type pending struct {
	buf   []byte
	lists []list
}

// list is one message's share of the elements.
type list struct {
	end    int // in buf
	n      int
	first  string // whose the first element is
	last   string
	others int // changes of owner after the first
}

// tx is a transaction under construction for one table. Elements are kept by set, so that a message holds many.
type tx struct {
	t       *table
	touched []*set
	bytes   int // about what it will take
	limit   int // of that
	enough  int // from when on it is committed between frontends
	owner   string
}

// element is one element to add or delete. Slices are copied.
type element struct {
	key, keyEnd, data []byte
	comment           string
	intervalEnd       bool
}

func (x *tx) add(s *set, e element) { x.t.need(s); x.put(s, &s.adds, e) }
func (x *tx) del(s *set, e element) { e.data, e.comment = nil, ""; x.put(s, &s.dels, e) }

func (x *tx) put(s *set, p *pending, e element) {
	if len(s.dels.lists) == 0 && len(s.adds.lists) == 0 {
		x.touched = append(x.touched, s)
	}
	before := len(p.buf)
	p.buf = appendElement(p.buf, e)
	size := len(p.buf) - before
	x.bytes += size
	n := len(p.lists)
	if n == 0 || p.lists[n-1].n == maxListElements || len(p.buf)-p.start(n-1) > maxListBytes {
		p.lists = append(p.lists, list{first: x.owner, last: x.owner})
		x.bytes += 128 // the message around the list
		n++
	}
	l := &p.lists[n-1]
	l.end, l.n = len(p.buf), l.n+1
	if l.last != x.owner {
		l.last = x.owner
		l.others++
	}
}

func (p *pending) start(i int) int {
	if i == 0 {
		return 0
	}
	return p.lists[i-1].end
}

func appendElement(b []byte, e element) []byte {
	at := len(b)
	b = openAttr(b, unix.NFTA_LIST_ELEM)
	b = appendValue(b, unix.NFTA_SET_ELEM_KEY, e.key)
	if e.keyEnd != nil {
		b = appendValue(b, nftaElemKeyEnd, e.keyEnd)
	}
	if e.data != nil {
		b = appendValue(b, unix.NFTA_SET_ELEM_DATA, e.data)
	}
	if e.intervalEnd {
		b = appendAttr(b, unix.NFTA_SET_ELEM_FLAGS, []byte{0, 0, 0, unix.NFT_SET_ELEM_INTERVAL_END})
	}
	if e.comment != "" {
		c := e.comment
		b = binary.NativeEndian.AppendUint16(b, uint16(4+2+len(c)+1))
		b = binary.NativeEndian.AppendUint16(b, unix.NFTA_SET_ELEM_USERDATA)
		b = append(b, udElemComment, byte(len(c)+1))
		b = append(append(b, c...), 0)
		b = append(b, 0, 0, 0)[:align(len(b))]
	}
	closeAttr(b, at)
	return b
}

func appendValue(b []byte, typ uint16, v []byte) []byte {
	at := len(b)
	b = openAttr(b, typ)
	b = appendAttr(b, unix.NFTA_DATA_VALUE, v)
	closeAttr(b, at)
	return b
}

// full tells whether nothing more fits.
func (x *tx) full() bool { return x.bytes >= x.limit || x.t.conn.pace.full(x.bytes) }

// ripe tells whether it is time to commit, with a frontend just complete.
func (x *tx) ripe() bool { return x.bytes >= x.enough || x.full() }

// commit sends the transaction and forgets it. After an error the kernel holds the old state or, when it says that
// the answer was lost, one of the two.
func (x *tx) commit() error { return commit(x.t.conn, x) }

// commit sends the transactions of several tables as one, after the rules that they need where rules come first.
func commit(c *socket, txs ...*tx) error {
	for _, x := range txs {
		x.t.settleRefs(x)
	}
	if err := commitRules(c, txs); err != nil {
		return err
	}
	out := newBatch(c)
	for _, x := range txs {
		if err := x.write(out); err != nil {
			return err
		}
	}
	return out.commit(c)
}

// write moves the transaction's messages into a batch.
func (x *tx) write(out *batch) error {
	count, elems := out.count, out.elems
	if err := x.writeRules(out); err != nil {
		return err
	}
	for _, s := range x.touched {
		kind := uint16(unix.NFT_MSG_DELSETELEM)
		if s.flags&unix.NFT_SET_TIMEOUT != 0 {
			kind = x.t.forget
		}
		out.elements(x.t, s, &s.dels, kind, "delete")
	}
	for _, s := range x.touched {
		out.elements(x.t, s, &s.adds, unix.NFT_MSG_NEWSETELEM, "add")
	}
	for _, s := range x.touched {
		s.dels.reset()
		s.adds.reset()
	}
	x.touched, x.bytes = x.touched[:0], 0
	x.t.sent.messages += out.count - count
	x.t.sent.elements += out.elems - elems
	return nil
}

// writeRules moves new sets, chains and rules into a batch.
func (x *tx) writeRules(out *batch) error {
	if !x.t.restructure {
		return nil
	}
	x.t.restructure, x.t.oldRulesInUse = false, x.t.forwards()
	return x.t.structure(out)
}

// commitRules commits new rules before a transaction that deletes elements, and waits until no packet is evaluated
// with the rules before them. A packet keeps the rules that it began with, but each of its lookups sees the elements
// of the newest generation: one that is on its way while a frontend moves to a set that its rules do not know would
// find the frontend in no set, and be dropped. Elements that are only added take nothing from such a packet.
func commitRules(c *socket, txs []*tx) error {
	out := newBatch(c)
	wait := false
	for _, x := range txs {
		if !x.t.forwards() || !x.deletes() {
			continue
		}
		count := out.count
		if err := x.writeRules(out); err != nil {
			return err
		}
		x.t.sent.messages += out.count - count
		wait = wait || x.t.oldRulesInUse
	}
	if !wait {
		return nil
	}
	if err := out.commit(c); err != nil {
		return err
	}
	underWay()
	for _, x := range txs {
		x.t.oldRulesInUse = false
	}
	return nil
}

// deletes reports whether the transaction deletes elements.
func (x *tx) deletes() bool {
	return slices.ContainsFunc(x.touched, func(s *set) bool { return len(s.dels.lists) > 0 })
}

func (p *pending) reset() { p.buf, p.lists = p.buf[:0], p.lists[:0] }

// batch is the messages of a transaction with what each is about.
type batch struct {
	messages
	seq    *uint32
	count  int // without the batch marks
	elems  int
	labels []label
}

func newBatch(c *socket) *batch {
	b := &batch{messages: messages{buf: c.scratch[:0]}, seq: &c.seq}
	b.mark(unix.NFNL_MSG_BATCH_BEGIN)
	return b
}

// close ends the batch and gives the sequence of its last message, which asks for an answer, so that a success is not
// just silence.
func (b *batch) close() (last uint32) {
	last = b.seqNow()
	flags := b.buf[b.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	b.mark(unix.NFNL_MSG_BATCH_END)
	return last
}

// commit sends the batch, unless it is empty.
func (b *batch) commit(c *socket) error {
	if b.count == 0 {
		return nil
	}
	last := b.close()
	c.scratch = b.buf
	failed, err := c.transact(b.buf, last)
	if err != nil || len(failed) > 0 {
		return b.explain(failed, err)
	}
	return nil
}

type label struct {
	seq        uint32
	what, name string
	list       list
}

func (b *batch) seqNow() uint32 { return *b.seq }

func (b *batch) mark(kind uint16) {
	*b.seq++
	b.beginType(kind, 0, *b.seq, unix.AF_UNSPEC)
	binary.BigEndian.PutUint16(b.buf[len(b.buf)-2:], unix.NFNL_SUBSYS_NFTABLES)
	b.end()
}

// message starts a message about an object.
func (b *batch) message(kind, flags uint16, family byte, what, name string) {
	*b.seq++
	b.count++
	b.labels = append(b.labels, label{seq: *b.seq, what: what, name: name})
	b.begin(kind, flags, *b.seq, family)
}

func (b *batch) elements(t *table, s *set, p *pending, kind uint16, what string) {
	for i, l := range p.lists {
		flags := uint16(0)
		if kind == unix.NFT_MSG_NEWSETELEM {
			flags = unix.NLM_F_CREATE
		}
		b.message(kind, flags, t.nfproto, what, s.name)
		b.labels[len(b.labels)-1].list = l
		b.str(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
		b.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
		at := b.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		b.buf = append(b.buf, p.buf[p.start(i):l.end]...)
		b.closeNest(at)
		b.end()
		b.elems += l.n
	}
}

// explain says which message failed in words of the plan.
func (b *batch) explain(failed []failure, err error) error {
	if err != nil {
		what := fmt.Sprintf("send %d messages", b.count)
		if len(b.labels) > 0 {
			what = fmt.Sprintf("send %d messages, the first to %s", b.count, b.labels[0])
		}
		return fmt.Errorf("nftables: %s: %w", what, hint(err))
	}
	f := failed[0]
	what := "commit"
	for _, l := range b.labels {
		if l.seq == f.seq {
			what = l.String()
		}
	}
	cause := hint(f.errno)
	if f.why != "" {
		cause = fmt.Errorf("%w (%s)", cause, f.why)
	}
	return fmt.Errorf("nftables: %s: %w", what, cause)
}

// String is like "add 3 slots of shop/web:http".
func (l label) String() string {
	if l.list.n == 0 {
		return l.what + " " + l.name
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %s", l.what, l.list.n, l.name)
	if l.list.first != "" {
		b.WriteString(" of " + l.list.first)
	}
	if l.list.others > 0 {
		fmt.Fprintf(&b, " and %d more", l.list.others)
	}
	return b.String()
}

// hint adds what to do about the errors that operators meet.
func hint(err error) error {
	switch err {
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: need CAP_NET_ADMIN in the network namespace", err)
	case unix.EMSGSIZE:
		return fmt.Errorf("%w: one Service does not fit the socket buffer, raise net.core.wmem_max", err)
	case unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP:
		return fmt.Errorf("%w: the kernel has no nf_tables for this family (CONFIG_NF_TABLES, modprobe nf_tables)", err)
	}
	return err
}
