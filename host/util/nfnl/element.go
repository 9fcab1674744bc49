package nfnl

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one message of elements. The list's length has 16 bits: the kernel silently ignores what does not fit.
const (
	maxListBytes    = 60_000
	MaxListElements = 1000
)

// Numbers that golang.org/x/sys/unix lacks, from linux/netfilter/nf_tables.h and libnftnl.
const (
	udComment = 0 // of a table, too
	jump      = 1<<32 + unix.NFT_JUMP
)

// Element is one element of a set or map.
type Element struct {
	Key, Data   []byte
	Comment     string
	IntervalEnd bool
	Jump        string // the chain that an element of a map of verdicts leads to
	// Timeout is how long the element lives after it was added or refreshed, and Expires how much of that remains, in
	// milliseconds. Zero is none; an element that is added without Expires gets the whole timeout.
	Timeout, Expires time.Duration
}

// AppendElement appends the encoded element to b.
func AppendElement(b []byte, e Element) []byte {
	at := len(b)
	b = openAttr(b, unix.NFTA_LIST_ELEM)
	b = appendValue(b, unix.NFTA_SET_ELEM_KEY, e.Key)
	if e.Data != nil {
		b = appendValue(b, unix.NFTA_SET_ELEM_DATA, e.Data)
	}
	if e.Jump != "" {
		data := len(b)
		b = openAttr(b, unix.NFTA_SET_ELEM_DATA)
		verdict := len(b)
		b = openAttr(b, unix.NFTA_DATA_VERDICT)
		b = AppendAttr(b, unix.NFTA_VERDICT_CODE, binary.BigEndian.AppendUint32(nil, jump))
		b = AppendAttr(b, unix.NFTA_VERDICT_CHAIN, append([]byte(e.Jump), 0))
		closeAttr(b, verdict)
		closeAttr(b, data)
	}
	if e.IntervalEnd {
		b = AppendAttr(b, unix.NFTA_SET_ELEM_FLAGS, []byte{0, 0, 0, unix.NFT_SET_ELEM_INTERVAL_END})
	}
	if e.Timeout > 0 {
		b = AppendAttr(b, unix.NFTA_SET_ELEM_TIMEOUT, milliseconds(e.Timeout))
	}
	if e.Expires > 0 {
		b = AppendAttr(b, unix.NFTA_SET_ELEM_EXPIRATION, milliseconds(e.Expires))
	}
	if e.Comment != "" {
		c := e.Comment
		b = binary.NativeEndian.AppendUint16(b, uint16(4+2+len(c)+1))
		b = binary.NativeEndian.AppendUint16(b, unix.NFTA_SET_ELEM_USERDATA)
		b = append(b, udComment, byte(len(c)+1))
		b = append(append(b, c...), 0)
		b = append(b, 0, 0, 0)[:Align(len(b))]
	}
	closeAttr(b, at)
	return b
}

func appendValue(b []byte, typ uint16, v []byte) []byte {
	at := len(b)
	b = openAttr(b, typ)
	b = AppendAttr(b, unix.NFTA_DATA_VALUE, v)
	closeAttr(b, at)
	return b
}

func milliseconds(d time.Duration) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(max(d.Milliseconds(), 1)))
}

func decodeMilliseconds(b []byte) time.Duration {
	if len(b) < 8 {
		return 0
	}
	return time.Duration(min(binary.BigEndian.Uint64(b), math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

// DecodeElement decodes an element into memory of its own.
func DecodeElement(b []byte) (e Element) {
	b = slices.Clone(b) // one allocation for all fields
	for typ, v := range Attrs(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = Attr(v, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			e.Data = Attr(v, unix.NFTA_DATA_VALUE)
			if verdict := Attr(v, unix.NFTA_DATA_VERDICT); Uint32(Attr(verdict, unix.NFTA_VERDICT_CODE)) == jump {
				e.Jump = Text(Attr(verdict, unix.NFTA_VERDICT_CHAIN))
			}
		case unix.NFTA_SET_ELEM_FLAGS:
			e.IntervalEnd = Uint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = decodeMilliseconds(v)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Expires = decodeMilliseconds(v)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = Comment(v)
		}
	}
	return e
}

// Comment returns the comment in the user data of an element or a table.
func Comment(userdata []byte) string {
	for b := userdata; len(b) >= 2; {
		typ, n := b[0], int(b[1])
		if n > len(b)-2 {
			return ""
		}
		if typ == udComment {
			return Text(b[2 : 2+n])
		}
		b = b[2+n:]
	}
	return ""
}

// ElementList is a list of encoded elements, cut into the shares of one message each.
type ElementList struct {
	buf    []byte
	shares []share
}

// share is what one message of elements carries.
type share struct {
	end         int // in buf
	elements    int
	firstOwner  string
	lastOwner   string
	otherOwners int // changes of owner after the first
}

// messageOverhead is about how many bytes a message has beyond its elements.
const messageOverhead = 128

// Add appends an element and returns about how many bytes that adds to a transaction. Errors name the owner.
func (l *ElementList) Add(e Element, owner string) (size int) {
	before := len(l.buf)
	l.buf = AppendElement(l.buf, e)
	size = len(l.buf) - before
	n := len(l.shares)
	if n == 0 || l.shares[n-1].elements == MaxListElements || len(l.buf)-l.start(n-1) > maxListBytes {
		l.shares = append(l.shares, share{firstOwner: owner, lastOwner: owner})
		size += messageOverhead
		n++
	}
	s := &l.shares[n-1]
	s.end, s.elements = len(l.buf), s.elements+1
	if s.lastOwner != owner {
		s.lastOwner = owner
		s.otherOwners++
	}
	return size
}

func (l *ElementList) start(i int) int {
	if i == 0 {
		return 0
	}
	return l.shares[i-1].end
}

// Empty reports whether the list has no elements.
func (l *ElementList) Empty() bool { return len(l.shares) == 0 }

// Reset empties the list and keeps its memory.
func (l *ElementList) Reset() { l.buf, l.shares = l.buf[:0], l.shares[:0] }
