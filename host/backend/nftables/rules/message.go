package rules

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Attributes and flags that golang.org/x/sys/unix does not have, from linux/netfilter/nf_tables.h.
const (
	nftaSetDescConcat = 2
	nftaSetCount      = 20 // since Linux 6.16
	nftaElemKeyEnd    = 10
	nftaTableUserdata = 6
	nftSetConcat      = 0x80

	msgDestroySetElem = 30 // since Linux 6.3
)

// messages is a run of netlink messages under construction.
type messages struct {
	buf   []byte
	start int // of the message under construction
}

// begin starts a message of nf_tables; kind is an NFT_MSG_*.
func (m *messages) begin(kind, flags uint16, seq uint32, family byte) {
	m.beginType(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, seq, family)
}

func (m *messages) beginType(typ, flags uint16, seq uint32, family byte) {
	m.start = len(m.buf)
	m.buf = append(m.buf, 0, 0, 0, 0)
	m.buf = binary.NativeEndian.AppendUint16(m.buf, typ)
	m.buf = binary.NativeEndian.AppendUint16(m.buf, flags|unix.NLM_F_REQUEST)
	m.buf = binary.NativeEndian.AppendUint32(m.buf, seq)
	m.buf = append(m.buf, 0, 0, 0, 0, family, unix.NFNETLINK_V0, 0, 0)
}

// end closes the message.
func (m *messages) end() {
	binary.NativeEndian.PutUint32(m.buf[m.start:], uint32(len(m.buf)-m.start))
}

func align(n int) int { return (n + 3) &^ 3 }

// open starts a nested attribute; closeNest ends it.
func (m *messages) open(typ uint16) int { m.buf = openAttr(m.buf, typ); return len(m.buf) - 4 }

func (m *messages) closeNest(at int) { closeAttr(m.buf, at) }

func (m *messages) bytes(typ uint16, v []byte) { m.buf = appendAttr(m.buf, typ, v) }

func (m *messages) str(typ uint16, v string) { m.buf = appendString(m.buf, typ, v) }

func (m *messages) u32(typ uint16, v uint32) {
	m.buf = appendAttr(m.buf, typ, binary.BigEndian.AppendUint32(make([]byte, 0, 4), v))
}

func openAttr(b []byte, typ uint16) []byte {
	b = append(b, 0, 0)
	return binary.NativeEndian.AppendUint16(b, typ|unix.NLA_F_NESTED)
}

func closeAttr(b []byte, at int) { binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at)) }

func appendAttr(b []byte, typ uint16, v []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, 0, 0, 0)[:align(len(b))]
}

func appendString(b []byte, typ uint16, v string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(5+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	b = append(b, 0)
	return append(b, 0, 0, 0)[:align(len(b))]
}

// attrs walks over attributes; it ends early at one that is cut off.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
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
			b = b[min(align(n), len(b)):]
		}
	}
}

// attr gives the first attribute of a type, nil when there is none.
func attr(b []byte, want uint16) []byte {
	for typ, v := range attrs(b) {
		if typ == want {
			return v
		}
	}
	return nil
}

func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
