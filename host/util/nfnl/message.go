package nfnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Encoder appends netlink messages to a buffer.
type Encoder struct {
	Buf   []byte
	start int // of the message under construction
}

// Begin begins a message of nf_tables; kind is an NFT_MSG_*.
func (m *Encoder) Begin(kind, flags uint16, seq uint32, family byte) {
	m.beginType(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, seq, family)
}

func (m *Encoder) beginType(typ, flags uint16, seq uint32, family byte) {
	m.start = len(m.Buf)
	m.Buf = append(m.Buf, 0, 0, 0, 0)
	m.Buf = binary.NativeEndian.AppendUint16(m.Buf, typ)
	m.Buf = binary.NativeEndian.AppendUint16(m.Buf, flags|unix.NLM_F_REQUEST)
	m.Buf = binary.NativeEndian.AppendUint32(m.Buf, seq)
	m.Buf = append(m.Buf, 0, 0, 0, 0, family, unix.NFNETLINK_V0, 0, 0)
}

// End ends the message.
func (m *Encoder) End() {
	binary.NativeEndian.PutUint32(m.Buf[m.start:], uint32(len(m.Buf)-m.start))
}

// BeginNest begins a nested attribute and returns what EndNest takes.
func (m *Encoder) BeginNest(typ uint16) int {
	m.Buf = openAttr(m.Buf, typ)
	return len(m.Buf) - 4
}

// EndNest ends a nested attribute.
func (m *Encoder) EndNest(at int) { closeAttr(m.Buf, at) }

// PutBytes appends an attribute.
func (m *Encoder) PutBytes(typ uint16, v []byte) { m.Buf = AppendAttr(m.Buf, typ, v) }

// PutString appends a string with its terminating NUL.
func (m *Encoder) PutString(typ uint16, v string) {
	b := binary.NativeEndian.AppendUint16(m.Buf, uint16(5+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	b = append(b, 0)
	m.Buf = append(b, 0, 0, 0)[:Align(len(b))]
}

// PutUint32 appends a number in network byte order.
func (m *Encoder) PutUint32(typ uint16, v uint32) {
	m.Buf = AppendAttr(m.Buf, typ, binary.BigEndian.AppendUint32(make([]byte, 0, 4), v))
}

// Align rounds up to the alignment of netlink attributes.
func Align(n int) int { return (n + 3) &^ 3 }

func openAttr(b []byte, typ uint16) []byte {
	b = append(b, 0, 0)
	return binary.NativeEndian.AppendUint16(b, typ|unix.NLA_F_NESTED)
}

func closeAttr(b []byte, at int) { binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at)) }

// AppendAttr appends an attribute to b.
func AppendAttr(b []byte, typ uint16, v []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, 0, 0, 0)[:Align(len(b))]
}

// Attrs yields the attributes in b, without the flags in their types. It stops at a truncated one.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			n := int(binary.NativeEndian.Uint16(b))
			if n < 4 || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[4:n]) {
				return
			}
			b = b[min(Align(n), len(b)):]
		}
	}
}

// Attr returns the first attribute of a type, nil if there is none.
func Attr(b []byte, want uint16) []byte {
	for typ, v := range Attrs(b) {
		if typ == want {
			return v
		}
	}
	return nil
}

// Text returns b up to its terminating NUL.
func Text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Uint32 decodes a number in network byte order, zero if b is too short.
func Uint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
