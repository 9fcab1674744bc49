package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// minFetch is the number of elements from which fetching by key is cheaper than a dump, whose cost is quadratic.
const minFetch = 2000

// loadSlots reads the slots of a scope. Their keys are known except for their number: a frontend's slots begin at 0,
// and its slot table bounds them. So they are fetched by key until one is missing. The map is dumped if the total is
// not the number of elements in the kernel, or the kernel does not report that.
func (t *table) loadSlots(i lookup, scope int) error {
	s := t.lookups[i].scopes[scope].slots
	if s == nil || !s.exists {
		return nil
	}
	n, ok, err := t.count(s)
	if err != nil {
		return err
	}
	if ok && n >= minFetch {
		found, err := t.fetchSlots(i, scope)
		if err == nil && found == n {
			return nil
		}
		for k, h := range t.frontends {
			if lookupOf(k) == i {
				h.scopes[scope].slots = nil
			}
		}
	}
	return t.loadElements(s)
}

// fetchSlots fetches all slots that can exist.
func (t *table) fetchSlots(i lookup, scope int) (found int, err error) {
	f := t.fetcher(t.lookups[i].scopes[scope].slots)
	for k, h := range t.frontends {
		totals := h.scopes[scope].sets & (rejectedBit - 1)
		if lookupOf(k) != i || bits.OnesCount32(totals) != 1 {
			continue
		}
		take := func(e []byte) bool { return t.takeSlot(h, scope, e) }
		key := frontendKey(make([]byte, 0, 64), k)
		c, _ := classOf(bits.TrailingZeros32(totals))
		size := 1 << c
		for n := range size {
			if n%f.limit == 0 {
				if err := f.request(min(size-n, f.limit), take); err != nil {
					return f.found, err
				}
			}
			f.add(binary.NativeEndian.AppendUint32(key, uint32(n)))
		}
	}
	return f.found, f.flush()
}

// fetcher fetches elements of a set by key, in batches that fit the receive buffer: the kernel answers each element
// with a message of its own.
type fetcher struct {
	from     tableReader
	s        *set
	limit    int // elements per batch
	m        nfnl.Encoder
	nest     int
	first    uint32 // sequence number of the batch's first request
	handlers []func([]byte) bool
	keys     int
	found    int // elements stored
}

func (t *tableReader) fetcher(s *set) *fetcher {
	return &fetcher{from: *t, s: s, limit: min(t.conn.MaxReplies, nfnl.MaxListElements)}
}

// request begins a request for n keys. take gets each element that exists.
func (f *fetcher) request(n int, take func([]byte) bool) error {
	if f.keys+n > f.limit {
		if err := f.flush(); err != nil {
			return err
		}
	}
	f.close()
	seq := f.from.conn.NextSeq()
	if len(f.handlers) == 0 {
		f.first = seq
	}
	f.handlers = append(f.handlers, take)
	f.m.Begin(unix.NFT_MSG_GETSETELEM, 0, seq, f.from.Family)
	f.m.PutString(unix.NFTA_SET_ELEM_LIST_TABLE, f.from.Name)
	f.m.PutString(unix.NFTA_SET_ELEM_LIST_SET, f.s.name)
	f.nest = f.m.BeginNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	return nil
}

func (f *fetcher) add(key []byte) {
	f.m.Buf = nfnl.AppendElement(f.m.Buf, nfnl.Element{Key: key})
	f.keys++
}

func (f *fetcher) close() {
	if len(f.m.Buf) > 0 {
		f.m.EndNest(f.nest)
		f.m.End()
	}
}

// flush sends the batch and stores the replies. The first missing element ends a request with ENOENT.
func (f *fetcher) flush() error {
	if len(f.handlers) == 0 {
		return nil
	}
	f.close()
	err := f.from.conn.Send(f.m.Buf)
	var failed error
	if err == nil {
		err = f.from.conn.Receive(func(typ, _ uint16, seq uint32, body []byte) bool {
			n := seq - f.first
			if n >= uint32(len(f.handlers)) || len(body) < 4 {
				return false
			}
			if typ == unix.NLMSG_ERROR {
				if errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno != 0 && errno != unix.ENOENT {
					failed = errno
				}
				return false
			}
			for _, v := range nfnl.Attrs(nfnl.Attr(body[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				if f.handlers[n](v) {
					f.found++
				}
			}
			return false
		})
	}
	f.m.Buf, f.handlers, f.keys = f.m.Buf[:0], f.handlers[:0], 0
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("nftables: read set %s: %w", f.s.name, nfnl.Hint(err))
	}
	return nil
}

// takeSlot stores one slot. It does not retain b.
func (t *table) takeSlot(h *elements, scope int, b []byte) bool {
	key := nfnl.Attr(nfnl.Attr(b, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
	a, ok := t.addrPort(nfnl.Attr(nfnl.Attr(b, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE))
	if !ok || len(key) < 4 {
		return false
	}
	return h.scopes[scope].putSlot(binary.NativeEndian.Uint32(key[len(key)-4:]), a)
}
