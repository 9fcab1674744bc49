package meter

import (
	"cmp"
	"slices"
)

// constExpr reads a constant expression that may refer to globals with an index below globals.
func (m *module) constExpr(r *reader, globals int) {
	for n := 0; r.err == nil; n++ {
		if n > 1 {
			r.fail("a constant expression has more than one instruction: %s", extendedExpr)
			return
		}
		switch op := r.byte(); op {
		case 0x0b:
			if n == 0 {
				r.fail("a constant expression is empty")
			}
			return
		case 0x41:
			r.sleb(32)
		case 0x42:
			r.sleb(64)
		case 0x43:
			r.bytes(4)
		case 0x44:
			r.bytes(8)
		case 0x23:
			if g := r.u32(); r.err == nil && int64(g) >= int64(globals) {
				r.fail("a constant expression reads global %d, which is not defined before it", g)
			}
		case 0xd0:
			r.refType()
		case 0xd2:
			m.funcIndex(r, true)
		case 0xfd:
			if v := r.byte(); r.err == nil && v != 0x0c {
				r.fail("a constant expression has vector instruction 0x%02x", v)
			}
			r.bytes(16)
		default:
			r.fail("a constant expression has instruction 0x%02x", op)
		}
	}
}

// funcIndex reads the index of a function; reach: the function becomes callable through a table or a reference.
func (m *module) funcIndex(r *reader, reach bool) uint32 {
	i := r.u32()
	if r.err != nil {
		return 0
	}
	if int64(i) >= int64(len(m.funcs)) {
		r.fail("function %d does not exist, there are %d", i, len(m.funcs))
		return 0
	}
	if reach && int(i) < len(m.imports) {
		m.hostReachable = true
	}
	return i
}

func (m *module) readElements(r *reader) {
	n := r.count("element segments", m.limits.Elements, 3)
	for i := 0; i < n && r.err == nil; i++ {
		// Bit 0: passive or declarative; bit 1: a table index, or declarative; bit 2: expressions, not indices.
		flag := r.u32()
		if r.err == nil && flag > 7 {
			r.fail("element segment %d has flags %d", i, flag)
			return
		}
		if flag&1 == 0 {
			var t uint32
			if flag&2 != 0 {
				t = r.u32()
			}
			if r.err == nil && int64(t) >= int64(len(m.tables)) {
				r.fail("element segment %d is for table %d of %d", i, t, len(m.tables))
			}
			m.constExpr(r, len(m.globals))
		}
		if flag&3 != 0 {
			if flag&4 != 0 {
				r.refType()
			} else if k := r.byte(); r.err == nil && k != 0 {
				r.fail("element segment %d is of kind %d", i, k)
			}
		}
		c := r.count("elements of a segment", m.limits.ElementN, 1)
		if m.elements += c; m.elements > m.limits.ElementN {
			r.fail("%d elements in the segments up to %d, the limit is %d", m.elements, i, m.limits.ElementN)
		}
		for j := 0; j < c && r.err == nil; j++ {
			if flag&4 != 0 {
				m.constExpr(r, len(m.globals))
			} else {
				m.funcIndex(r, true)
			}
		}
		m.elementSegments++
	}
}

func (m *module) readDataCount(r *reader) {
	m.dataSegments, m.hasCount = r.count("data segments", m.limits.Data, 0), true
}

func (m *module) readData(r *reader) {
	n := r.count("data segments", m.limits.Data, 2)
	if m.hasCount && n != m.dataSegments && r.err == nil {
		r.fail("%d data segments, the data count section says %d", n, m.dataSegments)
	}
	all := make([]dataSegment, 0, n)
	m.dataSizes = make([]int, 0, n)
	var constant reader
	for i := 0; i < n && r.err == nil; i++ {
		flag := r.u32()
		if r.err == nil && flag > 2 {
			r.fail("data segment %d has flags %d", i, flag)
			return
		}
		if flag == 2 {
			if x := r.u32(); r.err == nil && x != 0 {
				r.fail("data segment %d is for memory %d", i, x)
			}
		}
		begin := r.pos
		if flag != 1 {
			m.constExpr(r, len(m.globals))
		}
		expr := r.b[begin:r.pos]
		content := r.bytes(int(r.u32()))
		m.dataSizes = append(m.dataSizes, len(content))
		m.dataBytes += m.dataSizes[i]
		if flag != 1 && len(expr) > 0 && expr[0] == 0x41 { // i32.const
			constant.b, constant.pos = expr, 1
			all = append(all, dataSegment{uint32(constant.sleb(32)), content})
		}
	}
	if m.dataSegments = n; r.err == nil && m.dataBytes > m.limits.DataBytes {
		r.fail("%d bytes of data, the limit is %d", m.dataBytes, m.limits.DataBytes)
	}
	if r.err == nil && len(all) == n {
		m.mergeData(all)
	}
}

// dataSegment is an active data segment at a constant offset.
type dataSegment struct {
	offset  uint32
	content []byte
}

func (s *dataSegment) end() uint64 { return uint64(s.offset) + uint64(len(s.content)) }

// maxGap is how many zeros mergeData puts between two segments. The engine has some 100 bytes of memory for a segment.
const maxGap = 32

// mergeData merges segments that are close to each other. Go's linker makes one of each run of bytes between eight zeros: 24,000
// in a plugin, which take more memory than what they contain, and most of the time and fuel of a new instance. The memory of a
// new instance is zero, and segments that do not overlap can be written in any order. A module with a data count section is left
// as it is: others have no instruction that names a segment.
func (m *module) mergeData(all []dataSegment) {
	if m.hasCount || len(all) < 2 {
		return
	}
	if order := func(a, b dataSegment) int { return cmp.Compare(a.offset, b.offset) }; !slices.IsSortedFunc(all, order) {
		slices.SortStableFunc(all, order)
	}
	for i := range all[1:] {
		if all[i].end() > uint64(all[i+1].offset) {
			return
		}
	}
	var merged []byte
	var zeros [maxGap]byte
	out := make([]byte, 0, m.dataBytes+m.dataBytes/2)
	count, total := 0, 0
	for i := 0; i < len(all); {
		first := all[i].offset
		merged = append(merged[:0], all[i].content...)
		for i++; i < len(all) && uint64(all[i].offset)-all[i-1].end() <= maxGap; i++ {
			merged = append(merged, zeros[:uint64(all[i].offset)-all[i-1].end()]...)
			merged = append(merged, all[i].content...)
		}
		out = append(appendS64(append(out, 0, 0x41), int64(int32(first))), 0x0b)
		out = append(appendU32(out, uint32(len(merged))), merged...)
		count, total = count+1, total+len(merged)
	}
	m.sections[secData] = append(appendU32(nil, uint32(count)), out...)
	m.dataSegments, m.dataBytes, m.dataSizes = count, total, nil
}
