package nftables

import (
	"fmt"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// tableReader reads from a table.
type tableReader struct {
	nfnl.Table // named tableName, or handoverName while it is filled under that name
	conn       *nfnl.Conn
}

// request encodes a dump request about the table, with its name in the attribute typ.
func (t *tableReader) request(kind uint16, typ uint16, more func(*nfnl.Encoder)) []byte {
	var m nfnl.Encoder
	m.Begin(kind, unix.NLM_F_DUMP, t.conn.NextSeq(), t.Family)
	if typ != 0 {
		m.PutString(typ, t.Name)
	}
	if more != nil {
		more(&m)
	}
	m.End()
	return m.Buf
}

// maxSettles is how often a set is read again while the kernel resizes its hash table. That takes milliseconds, but on
// a busy machine it may start late.
const maxSettles = 200

// dumpSettled reads a set. While the kernel resizes the set's hash table, a dump can repeat and miss elements: each
// part skips as many elements as were read, in their present order. If one is missed, another one appears twice.
func (t *tableReader) dumpSettled(s *set) ([]nfnl.Element, error) {
	for try := 1; ; try++ {
		list, twice, err := t.dumpElements(s)
		switch {
		case err != nil:
			return nil, err
		case !twice || t.conn.AllowInconsistent, s.flags&unix.NFT_SET_INTERVAL != 0: // intervals are in no hash table
			return list, nil
		case try == maxSettles:
			return nil, fmt.Errorf("nftables: list set %s: the kernel kept resizing its hash table: %w", s.name, nfnl.ErrInterrupted)
		}
	}
}

// dumpElements reads a set without duplicates, and reports whether there were any.
func (t *tableReader) dumpElements(s *set) (list []nfnl.Element, twice bool, err error) {
	if err := t.eachElement(s, func(b []byte) { list = append(list, nfnl.DecodeElement(b)) }); err != nil {
		return nil, false, err
	}
	seen := make(map[string]struct{}, len(list))
	once := slices.DeleteFunc(list, func(e nfnl.Element) bool {
		k := string(e.Key)
		if e.IntervalEnd {
			k += "]"
		}
		_, again := seen[k]
		seen[k] = struct{}{}
		return again
	})
	return once, len(once) < len(list), nil
}

// eachElement calls f with each encoded element of a set.
func (t *tableReader) eachElement(s *set, f func(b []byte)) error {
	return t.eachList(s, func(list iter.Seq[[]byte]) { list(func(b []byte) bool { f(b); return true }) })
}

// eachList calls f with the encoded elements of each message of a dump of a set.
func (t *tableReader) eachList(s *set, f func(list iter.Seq[[]byte])) error {
	req := t.request(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, func(m *nfnl.Encoder) {
		m.PutString(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	})
	err := t.conn.Dump(req, func(b []byte) {
		f(func(yield func([]byte) bool) {
			for typ, v := range nfnl.Attrs(nfnl.Attr(b[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				if typ == unix.NFTA_LIST_ELEM && !yield(v) {
					return
				}
			}
		})
	})
	if err != nil {
		return fmt.Errorf("nftables: list set %s: %w", s.name, nfnl.Hint(err))
	}
	return nil
}

// count returns the number of elements. Kernels before 6.16 do not report it.
func (t *tableReader) count(s *set) (n int, ok bool, err error) {
	if s.flags&unix.NFT_SET_INTERVAL != 0 {
		return 0, false, nil // counts ends or ranges, depending on the set's type
	}
	var m nfnl.Encoder
	m.Begin(unix.NFT_MSG_GETSET, unix.NLM_F_ACK, t.conn.NextSeq(), t.Family)
	m.PutString(unix.NFTA_SET_TABLE, t.Name)
	m.PutString(unix.NFTA_SET_NAME, s.name)
	m.End()
	err = t.conn.Dump(m.Buf, func(b []byte) {
		if v := nfnl.Attr(b[4:], nftaSetCount); v != nil {
			n, ok = int(nfnl.Uint32(v)), true
		}
	})
	if err != nil {
		return 0, false, fmt.Errorf("nftables: read set %s: %w", s.name, nfnl.Hint(err))
	}
	return n, ok, nil
}
