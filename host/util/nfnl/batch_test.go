package nfnl

import (
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// reply is a transport that answers each transaction with an error for its n-th message, or with an acknowledgement of
// its last one if n is negative.
type reply struct {
	n     int
	errno unix.Errno
	sent  [][]byte
	queue [][]byte
}

func (r *reply) Send(b []byte) error {
	r.sent = append(r.sent, append([]byte(nil), b...))
	var seqs []uint32
	for at := 0; at < len(b); at += Align(int(binary.NativeEndian.Uint32(b[at:]))) {
		if binary.NativeEndian.Uint16(b[at+4:])>>8 == unix.NFNL_SUBSYS_NFTABLES {
			seqs = append(seqs, binary.NativeEndian.Uint32(b[at+8:]))
		}
	}
	n, errno := r.n, r.errno
	if n < 0 {
		n, errno = len(seqs)-1, 0
	}
	var m Encoder
	m.beginType(unix.NLMSG_ERROR, 0, seqs[n], 0)
	m.Buf = append(m.Buf[:unix.NLMSG_HDRLEN], binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))...)
	m.Buf = append(m.Buf, make([]byte, unix.NLMSG_HDRLEN)...)
	m.End()
	r.queue = append(r.queue, m.Buf)
	return nil
}

func (r *reply) Receive(buf []byte) (int, error) {
	if len(r.queue) == 0 {
		return 0, unix.EAGAIN
	}
	n := copy(buf, r.queue[0])
	r.queue = r.queue[1:]
	return n, nil
}

func testBatch(c *Conn) *Batch {
	b := NewBatch(c)
	var l ElementList
	for _, owner := range []string{"shop/web:http", "shop/web:http", "shop/api:http"} {
		l.Add(Element{Key: []byte{10, 0, 0, 1}}, owner)
	}
	b.PutElements(unix.NFT_MSG_NEWSETELEM, Table{unix.NFPROTO_IPV4, "sluice"}, "frontends", &l, "add")
	b.DeleteTable(Table{unix.NFPROTO_IPV4, "other"})
	return b
}

func TestCommitErrorNamesTheOperation(t *testing.T) {
	for n, want := range []string{
		"nftables: add 3 frontends of shop/web:http and 1 more: no such file",
		"nftables: delete table ip other: no such file",
	} {
		err := testBatch(New(&reply{n: n, errno: unix.ENOENT})).Commit()
		if !errors.Is(err, unix.ENOENT) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("message %d: got %v, want %s", n, err, want)
		}
	}
}

func TestCommitCountsAcknowledgedTransactions(t *testing.T) {
	r := &reply{n: -1}
	c := New(r)
	if err := testBatch(c).Commit(); err != nil || c.Commits != 1 {
		t.Errorf("got %v, %d commits", err, c.Commits)
	}
	if err := NewBatch(c).Commit(); err != nil || c.Commits != 1 || len(r.sent) != 1 {
		t.Errorf("an empty batch: got %v, %d commits, %d datagrams", err, c.Commits, len(r.sent))
	}
}

// slow is a transport that sends only when it is let.
type slow struct {
	*reply
	let chan struct{}
}

func (s slow) Send(b []byte) error { <-s.let; return s.reply.Send(b) }

func TestCommitLaterSendsWhileTheNextIsBuilt(t *testing.T) {
	r := slow{&reply{n: -1}, make(chan struct{}, 4)}
	c := New(r)
	var built [][]byte
	for range 4 {
		b := testBatch(c)
		if len(built) > 0 { // the one before is sent only now
			r.let <- struct{}{}
		}
		if err := b.CommitLater(); err != nil {
			t.Fatal(err)
		}
		built = append(built, slices.Clone(b.Buf))
	}
	r.let <- struct{}{}
	if err := c.Await(); err != nil || c.Commits != 4 || c.Await() != nil {
		t.Errorf("got %v, %d commits", err, c.Commits)
	}
	if !reflect.DeepEqual(r.sent, built) {
		t.Error("another transaction was sent than was built")
	}
}

func TestCommitLaterReturnsItsErrorNext(t *testing.T) {
	for name, next := range map[string]func(c *Conn) error{
		"Await":           (*Conn).Await,
		"Commit":          func(c *Conn) error { return testBatch(c).Commit() },
		"an empty Commit": func(c *Conn) error { return NewBatch(c).Commit() },
		"CommitLater":     func(c *Conn) error { return testBatch(c).CommitLater() },
		"CommitUnless":    func(c *Conn) error { _, err := testBatch(c).CommitUnless(unix.EEXIST); return err },
		"Send":            func(c *Conn) error { return c.Send(nil) },
	} {
		r := &reply{n: 1, errno: unix.ENOENT}
		c := New(r)
		if err := testBatch(c).CommitLater(); err != nil {
			t.Fatal(err)
		}
		const want = "nftables: delete table ip other: no such file"
		if err := next(c); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), want) || len(r.sent) != 1 {
			t.Errorf("%s: got %v after %d transactions, want %s", name, err, len(r.sent), want)
		}
		if err := c.Await(); err != nil {
			t.Errorf("%s: the error comes twice: %v", name, err)
		}
	}
}

func TestCommitUnlessReturnsTheRefusedMessages(t *testing.T) {
	for n, errno := range []unix.Errno{unix.EEXIST, unix.ENFILE} {
		refused, err := testBatch(New(&reply{n: n, errno: errno})).CommitUnless(unix.EEXIST, unix.ENFILE)
		if err != nil || len(refused) != 1 || refused[n] != errno {
			t.Errorf("%v: got %v, %v, want message %d", errno, refused, err, n)
		}
	}
	if refused, err := testBatch(New(&reply{n: 1, errno: unix.ENOENT})).CommitUnless(unix.EEXIST); !errors.Is(err, unix.ENOENT) || refused != nil {
		t.Errorf("another error: got %v, %v", refused, err)
	}
	if refused, err := testBatch(New(&reply{n: -1})).CommitUnless(unix.EEXIST); err != nil || refused != nil {
		t.Errorf("committed: got %v, %v", refused, err)
	}
}

func TestDryRunReturnsOnlyOtherErrors(t *testing.T) {
	if err := testBatch(New(&reply{n: 2, errno: unix.ENOENT})).DryRun(unix.NFPROTO_IPV4); err != nil {
		t.Errorf("the message that has to fail failed: got %v", err)
	}
	if err := testBatch(New(&reply{n: 0, errno: unix.EOPNOTSUPP})).DryRun(unix.NFPROTO_IPV4); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("another message failed: got %v", err)
	}
	if err := testBatch(New(&reply{n: -1})).DryRun(unix.NFPROTO_IPV4); err == nil {
		t.Error("the transaction was committed: got no error")
	}
}

func TestElementListIsCutIntoMessages(t *testing.T) {
	b := NewBatch(New(&reply{n: -1}))
	var l ElementList
	for i := range 2*MaxListElements + 1 {
		l.Add(Element{Key: binary.BigEndian.AppendUint32(nil, uint32(i))}, "")
	}
	b.PutElements(unix.NFT_MSG_NEWSETELEM, Table{unix.NFPROTO_IPV4, "sluice"}, "s", &l, "add")
	if b.Count != 3 || b.Elements != 2*MaxListElements+1 {
		t.Errorf("got %d messages, %d elements", b.Count, b.Elements)
	}
	l.Reset()
	for range 10 {
		l.Add(Element{Key: make([]byte, maxListBytes/4)}, "")
	}
	for i, s := range l.shares {
		if n := s.end - l.start(i); n > 1<<16 {
			t.Errorf("message %d: a list of %d bytes", i, n)
		}
	}
}
