package meter

// memory.fill, memory.copy and memory.init run without a check, and a page that is touched for the first time takes microseconds: all of a
// large memory took 40 ms, and more in virtual machines whose memory is new to their host. So a large operation is done in
// chunks, with a check before each: a function of the meter's does all chunks but the last, and the guest's instruction the rest.

// chunkBytes is the size of a chunk. Smaller operations only compare with it.
const chunkBytes = 1 << 20

// chunked is an operation that is done in chunks.
type chunked struct {
	op      chunkedOp
	segment uint32 // of chunkedInit
}

type chunkedOp uint8

const (
	notChunked chunkedOp = iota
	chunkedFill
	chunkedCopy
	chunkedInit
)

// chunk appends a call of the function for a chunked operation, if the number in the local scratch is large. The operands are
// and stay on the stack.
func (e *emitter) chunk(b []byte, scratch uint32, kind chunked) []byte {
	t := e.funcType([]byte{i32, i32, i32}, []byte{i32, i32, i32})
	b = appendU32(append(b, 0x20), scratch)                     // local.get
	b = append(appendS64(append(b, 0x41), e.m.chunkSize), 0x4b) // i32.const, i32.gt_u
	b = appendS64(append(b, 0x04), int64(t))                    // if
	return append(appendU32(append(b, 0x10), e.helper(kind)), 0x0b)
}

// helper returns the index of the function for an operation, which is after those of the guest.
func (e *emitter) helper(kind chunked) uint32 {
	for i, k := range e.helpers {
		if k == kind {
			return uint32(len(e.m.funcs) + i)
		}
	}
	e.helpers = append(e.helpers, kind)
	return uint32(len(e.m.funcs) + len(e.helpers) - 1)
}

// funcType returns the index of a type, which it adds if there is none.
func (e *emitter) funcType(params, results []byte) int {
	for i, t := range e.types {
		if string(t.Params) == string(params) && string(t.Results) == string(results) {
			return i
		}
	}
	e.types = append(e.types[:len(e.types):len(e.types)], FuncType{params, results})
	return len(e.types) - 1
}

func (e *emitter) functionSection() []byte {
	n, rest := vector(e.m.sections[secFunction])
	b := append(appendU32(nil, n+uint32(len(e.helpers))), rest...)
	for range e.helpers {
		b = appendU32(b, uint32(e.funcType([]byte{i32, i32, i32}, []byte{i32, i32, i32})))
	}
	return b
}

// helperBody appends the body of a function (param $to $from-or-value $n i32) (result i32 i32 i32) that returns the operands
// of what is left to do: at most a chunk, or everything if it is out of bounds and has to trap.
func (e *emitter) helperBody(b []byte, kind chunked) []byte {
	const to, from, n = 0, 1, 2
	get := func(local byte) { b = append(b, 0x20, local) }
	chunk := func() { b = appendS64(append(b, 0x41), e.m.chunkSize) }
	// move adds a chunk to a local (0x6a), or subtracts one (0x6b).
	move := func(local, op byte) { get(local); chunk(); b = append(b, op, 0x21, local) }
	again := func() { get(n); chunk(); b = append(b, 0x4b, 0x0d, 0) } // i32.gt_u, br_if
	inBounds := func(local byte) {
		get(local)
		b = append(b, 0xad) // i64.extend_i32_u
		get(n)
		b = append(b, 0xad, 0x7c)            // i64.add
		b = append(b, 0x3f, 0, 0xad)         // memory.size
		b = append(b, 0x42, 16, 0x86)        // i64.const 16, i64.shl
		b = append(append(b, 0x56), 0x0d, 0) // i64.gt_u, br_if
	}
	b = append(b, 0, 0x02, 0x40) // no locals, block
	inBounds(to)
	switch kind.op {
	case chunkedInit:
		get(from)
		b = append(b, 0xad)
		get(n)
		b = append(b, 0xad, 0x7c)                                          // i64.add
		b = appendS64(append(b, 0x42), int64(e.m.dataSizes[kind.segment])) // i64.const: a segment that was dropped traps in the first chunk
		b = append(append(b, 0x56), 0x0d, 0)                               // i64.gt_u, br_if
		b = e.check(append(b, 0x03, 0x40))                                 // loop
		get(to)
		get(from)
		chunk()
		b = append(appendU32(append(b, 0xfc, 8), kind.segment), 0)
		move(to, 0x6a)
		move(from, 0x6a)
		move(n, 0x6b)
		again()
		b = append(b, 0x0b)
	case chunkedFill:
		b = e.check(append(b, 0x03, 0x40)) // loop
		get(to)
		get(from)
		chunk()
		b = append(b, 0xfc, 11, 0)
		move(to, 0x6a)
		move(n, 0x6b)
		again()
		b = append(b, 0x0b)
	case chunkedCopy:
		inBounds(from)
		get(to)
		get(from)
		b = append(b, 0x4d, 0x04, 0x40)    // i32.le_u, if: from the start, as the end may be overwritten
		b = e.check(append(b, 0x03, 0x40)) // loop
		get(to)
		get(from)
		chunk()
		b = append(b, 0xfc, 10, 0, 0)
		move(to, 0x6a)
		move(from, 0x6a)
		move(n, 0x6b)
		again()
		b = append(b, 0x0b, 0x05)          // else: from the end
		b = e.check(append(b, 0x03, 0x40)) // loop
		move(n, 0x6b)
		for _, local := range []byte{to, from} {
			get(local)
			get(n)
			b = append(b, 0x6a)
		}
		chunk()
		b = append(b, 0xfc, 10, 0, 0)
		again()
		b = append(b, 0x0b, 0x0b)
	}
	b = append(b, 0x0b)
	get(to)
	get(from)
	get(n)
	return append(b, 0x0b)
}

// countChunk counts what compiling the call takes: an if whose join copies all values.
func (s *scanner) countChunk() {
	w := &s.b.work
	w.moves += 3 + 8 + 2*6
	w.reloads += int64(s.m.mutableGlobals + 3)
	w.bounds += int64(s.flow.bounds)
	w.arity = max(w.arity, 3)
	for range 3 {
		s.newBlock()
	}
	w.edges += 2
	w.params += 2 * int64(w.values+w.arity)
	w.steps += int64(w.values) * int64(s.flow.chain)
}
