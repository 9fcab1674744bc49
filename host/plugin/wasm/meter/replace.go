package meter

import "math"

// Instructions that wazero 1.12.0 compiles wrongly are replaced by others with the same result, on all processors, so that the
// module is the same everywhere:
//
//   - select of floats and vectors: on amd64, the result may be what somebody else has left in a register (issue 2534 of wazero).
//   - copysign: on amd64, the sign may be wrong. A value that is still needed may take the register in which the engine computes
//     it.
//   - remainders: on arm64, the result may be computed from an old value on the stack (pull request 2508 of wazero).
//
// Floats become integers for that: selects of integers, and divisions, are compiled correctly.

// replacement is what an instruction is replaced by.
type replacement struct {
	op     byte
	typ    byte // of the result
	length int  // of the instruction, bytes
}

// scratch is the locals that the meter adds to a function.
type scratch uint8

const (
	noScratch    scratch = iota
	scratchSize          // an i32, for the size of a bulk operation
	scratchPairs         // two i32, two i64
)

// groups are the groups of the locals, each with a number below 128 and a type.
func (s scratch) groups() []byte {
	return [][]byte{nil, {1, i32}, {2, i32, 2, i64}}[s]
}

const (
	opSelect     = 0x1b
	opCopysign32 = 0x98
	opCopysign64 = 0xa6
	opRemS32     = 0x6f
	opRemU32     = 0x70
	opRemS64     = 0x81
	opRemU64     = 0x82
)

// moreInstructions bounds by how many instructions a replacement is longer.
const moreInstructions = 14

// selected scans a select, without its condition: whether it is replaced depends on the type of its operands.
func (s *scanner) selected(start int) {
	s.pop(1)
	t := max(s.pop(1), s.pop(1)) // in unreachable code, one may be of any type
	s.push(t)
	if t == f32 || t == f64 || t == v128 {
		s.charge(costVector - costPlain)
		s.replace(start, replacement{op: opSelect, typ: t})
	}
}

// replace notes that the instruction from start to here is replaced.
func (s *scanner) replace(start int, by replacement) {
	by.length = s.r.pos - start
	s.b.edits = append(s.b.edits, edit{pos: start, kind: editReplace, by: by})
	s.b.count += moreInstructions
	s.b.work.moves += moreInstructions
	if by.typ != v128 {
		s.b.scratch = scratchPairs
		return
	}
	s.fuelCheck() // three blocks, too
	w := &s.b.work
	w.arity = max(w.arity, 2)
	w.edges += 2
	w.params += int64(2 * (w.values + w.arity))
	w.steps += int64(2 * w.values * s.flow.chain)
	s.flow.chain = 0 // the last one is a join
}

// add counts the locals that the meter has added, which all joins pass.
func (w *work) add(s scratch) {
	if s != scratchPairs {
		return
	}
	const n = 4
	w.values += n
	w.params += int64(n * w.edges)
	w.live += int64(n * w.blocks)
}

// width has the opcodes of integers of 32 or 64 bits, and of floats of the same size.
type width struct{ constant, eq, and, or, mul, sub, divS, divU, toInt, toFloat byte }

// replace appends the instructions, which use locals from scratch.
func (e *emitter) replace(b []byte, scratch uint32, r replacement) []byte {
	w, x, y, sign := width{0x41, 0x46, 0x71, 0x72, 0x6c, 0x6b, 0x6d, 0x6e, 0xbc, 0xbe}, scratch, scratch+1, int64(math.MinInt32)
	if r.typ == i64 || r.typ == f64 {
		w, x, y, sign = width{0x42, 0x51, 0x83, 0x84, 0x7e, 0x7d, 0x7f, 0x80, 0xbd, 0xbf}, scratch+2, scratch+3, math.MinInt64
	}
	get := func(l uint32) { b = appendU32(append(b, 0x20), l) }
	set := func(l uint32) { b = appendU32(append(b, 0x21), l) }
	constant := func(n int64) { b = appendS64(append(b, w.constant), n) }
	op := func(ops ...byte) { b = append(b, ops...) }
	switch r.op {
	case opSelect:
		if r.typ == v128 { // an if with both operands: it drops the second one, or is left with it
			t := e.funcType([]byte{v128, v128}, []byte{v128})
			return append(appendS64(append(b, opIf), int64(t)), 0x1a, 0x05, 0x0c, 0, 0x0b) // drop, else, br 0, end
		}
		set(scratch)
		op(w.toInt)
		set(y)
		op(w.toInt)
		get(y)
		get(scratch)
		op(opSelect, w.toFloat)
	case opCopysign32, opCopysign64:
		op(w.toInt)
		constant(sign)
		op(w.and)
		set(y)
		op(w.toInt)
		constant(-sign - 1) // all other bits
		op(w.and)
		get(y)
		op(w.or, w.toFloat)
	default: // x - x/y*y
		set(y)
		set(x)
		div := w.divU
		if r.op == opRemS32 || r.op == opRemS64 { // a division by -1 may overflow; the remainder is that of 1
			div = w.divS
			constant(1)
			get(y)
			get(y)
			constant(-1)
			op(w.eq, opSelect)
			set(y)
		}
		get(x)
		get(x)
		get(y)
		op(div)
		get(y)
		op(w.mul, w.sub)
	}
	return b
}
