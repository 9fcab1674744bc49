package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Batch is a transaction under construction: its messages, and what each of them is about.
type Batch struct {
	Encoder
	conn       *Conn
	Count      int // messages, not counting those that begin and end the batch
	Elements   int
	operations []operation
}

// operation describes a message, such as "add 3 slots of shop/web:http".
type operation struct {
	seq          uint32
	verb, object string
	share        share
}

// NewBatch begins a transaction. A Conn has one at a time: they share a buffer, but for those of CommitLater.
func NewBatch(c *Conn) *Batch {
	b := &Batch{Encoder: Encoder{Buf: c.batchBuf[:0]}, conn: c}
	b.marker(unix.NFNL_MSG_BATCH_BEGIN)
	return b
}

func (b *Batch) marker(kind uint16) {
	b.beginType(kind, 0, b.conn.NextSeq(), unix.AF_UNSPEC)
	binary.BigEndian.PutUint16(b.Buf[len(b.Buf)-2:], unix.NFNL_SUBSYS_NFTABLES)
	b.End()
}

// Message begins a message. Errors name verb and object.
func (b *Batch) Message(kind, flags uint16, family byte, verb, object string) {
	seq := b.conn.NextSeq()
	b.Count++
	b.operations = append(b.operations, operation{seq: seq, verb: verb, object: object})
	b.Begin(kind, flags, seq, family)
}

// PutElements appends the messages that add elements to a set or delete them; kind is an NFT_MSG_*.
func (b *Batch) PutElements(kind uint16, t Table, set string, l *ElementList, verb string) {
	for i, s := range l.shares {
		flags := uint16(0)
		if kind == unix.NFT_MSG_NEWSETELEM {
			flags = unix.NLM_F_CREATE
		}
		b.Message(kind, flags, t.Family, verb, set)
		b.operations[len(b.operations)-1].share = s
		b.PutString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
		b.PutString(unix.NFTA_SET_ELEM_LIST_SET, set)
		at := b.BeginNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		b.Buf = append(b.Buf, l.buf[l.start(i):s.end]...)
		b.EndNest(at)
		b.End()
		b.Elements += s.elements
	}
}

// PutNewElement appends a message that adds one element, and that the kernel refuses with EEXIST if the set has its key.
func (b *Batch) PutNewElement(t Table, set string, e Element) {
	b.Message(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, t.Family, "add an element to", set)
	b.PutString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	b.PutString(unix.NFTA_SET_ELEM_LIST_SET, set)
	at := b.BeginNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	b.Buf = AppendElement(b.Buf, e)
	b.EndNest(at)
	b.End()
	b.Elements++
}

// Commit sends the batch, unless it is empty. After an error the kernel has the state from before, unless the error is
// ErrReplyLost: then the batch was either committed whole or not at all.
func (b *Batch) Commit() error {
	if err := b.conn.Await(); err != nil || b.Count == 0 {
		return err
	}
	failed, err := b.send()
	if err != nil || len(failed) > 0 {
		return b.explain(failed, err)
	}
	return nil
}

// CommitLater is Commit, except that it returns while the kernel processes the transaction, so that the next one can be built
// meanwhile. It waits for the one before. An error is that of the next commit, which then is not sent, or of Conn.Await.
func (b *Batch) CommitLater() error {
	c := b.conn
	if err := c.Await(); err != nil || b.Count == 0 {
		return err
	}
	c.drain()
	w := &underWay{b, b.seal(), make(chan sent, 1)}
	c.underWay, c.batchBuf, c.spareBuf = w, c.spareBuf, b.Buf
	go func() { w.sent <- c.timedSend(b.Buf) }()
	return nil
}

// CommitUnless is Commit, except that it returns the messages, counted from zero, that the kernel refused with one of
// these errors, if there are no others. Then nothing is committed. The kernel names all of them at once.
func (b *Batch) CommitUnless(errnos ...unix.Errno) (refused map[int]unix.Errno, err error) {
	if err := b.conn.Await(); err != nil || b.Count == 0 {
		return nil, err
	}
	first := b.operations[0].seq
	failed, err := b.send()
	if err != nil {
		return nil, b.explain(nil, err)
	}
	for i, f := range failed {
		if !slices.Contains(errnos, f.errno) || f.seq-first >= uint32(b.Count) {
			return nil, b.explain(failed[i:], nil)
		}
		if refused == nil {
			refused = map[int]unix.Errno{}
		}
		refused[int(f.seq-first)] = f.errno
	}
	return refused, nil
}

// DryRun sends the batch with one more message, which fails, so that the kernel undoes all of it. It returns the error of
// any other message. What the kernel checks only when it commits stays unchecked.
func (b *Batch) DryRun(family byte) error {
	b.DeleteTable(Table{family, "no-such-table-of-sluice"})
	doomed := b.operations[len(b.operations)-1].seq
	failed, err := b.send()
	switch {
	case err != nil:
	case len(failed) == 0:
		err = errors.New("a transaction that has to fail was committed")
	case failed[0].seq == doomed:
		return nil
	}
	return b.explain(failed, err)
}

// send ends the batch and sends it.
func (b *Batch) send() ([]failure, error) {
	last := b.seal()
	b.conn.batchBuf = b.Buf
	return b.conn.transact(b.Buf, last)
}

// seal ends the batch and returns the number of its last message, which asks for an acknowledgement: otherwise success would be
// silent.
func (b *Batch) seal() (last uint32) {
	flags := b.Buf[b.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	b.marker(unix.NFNL_MSG_BATCH_END)
	return b.operations[len(b.operations)-1].seq
}

// explain returns an error that names the operation that failed.
func (b *Batch) explain(failed []failure, err error) error {
	if err != nil {
		what := fmt.Sprintf("send %d messages", b.Count)
		if len(b.operations) > 0 {
			what = fmt.Sprintf("send %d messages, the first to %s", b.Count, b.operations[0])
		}
		return fmt.Errorf("nftables: %s: %w", what, Hint(err))
	}
	f := failed[0]
	what := "commit"
	for _, o := range b.operations {
		if o.seq == f.seq {
			what = o.String()
		}
	}
	cause := Hint(f.errno)
	if f.text != "" {
		cause = fmt.Errorf("%w (%s)", cause, f.text)
	}
	return fmt.Errorf("nftables: %s: %w", what, cause)
}

func (o operation) String() string {
	if o.share.elements == 0 {
		return o.verb + " " + o.object
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %s", o.verb, o.share.elements, o.object)
	if o.share.firstOwner != "" {
		b.WriteString(" of " + o.share.firstOwner)
	}
	if o.share.otherOwners > 0 {
		fmt.Fprintf(&b, " and %d more", o.share.otherOwners)
	}
	return b.String()
}
