package meter_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
)

const (
	tI32, tI64, tF32, tF64, tV128 = 0x7f, 0x7e, 0x7d, 0x7c, 0x7b

	mostLocals = 19 // of a type, so that there may be more values than registers: 15 on amd64, 32 on arm64
)

// vectors returns the instructions with prefix 0xfd in ranges.
func vectors(ranges ...int) (ops [][]byte) {
	for r := 0; r < len(ranges); r += 2 {
		for op := ranges[r]; op <= ranges[r+1]; op++ {
			ops = append(ops, binary.AppendUvarint([]byte{0xfd}, uint64(op)))
		}
	}
	return ops
}

func types() []byte { return []byte{tI32, tI64, tF32, tF64, tV128} }

// generator writes the body of a function (param i32) (result i64).
type generator struct {
	*rand.Rand
	b      []byte
	depth  int          // of expressions
	locals map[byte]int // of each type
}

// callee returns the index of the function for type t.
func callee(t byte) byte { return byte(1 + bytes.IndexByte(types(), t)) }

func (g *generator) op(b ...byte) { g.b = append(g.b, b...) }

// local appends an instruction with local i of type t.
func (g *generator) local(op byte, t byte, i int) {
	at := 1
	for _, u := range types() {
		if u == t {
			g.op(op, byte(at+i)) // below 128: one byte
			return
		}
		at += g.locals[u]
	}
}

// any appends an instruction with any local of type t.
func (g *generator) any(op byte, t byte) { g.local(op, t, g.IntN(g.locals[t])) }

// choice pushes one of two locals of type t.
func (g *generator) choice(t byte) {
	g.any(0x20, t)
	g.any(0x20, t)
	g.op(0x20, 0, 0x41, 1<<g.IntN(3), 0x71) // a bit of the argument
	if g.IntN(2) == 0 {
		g.op(0x1b)
	} else {
		g.op(0x1c, 1, t)
	}
}

// constant pushes a small number.
func (g *generator) constant(t byte) {
	n := byte(g.IntN(64))
	switch t {
	case tI32:
		g.op(0x41, n)
	case tI64:
		g.op(0x42, n)
	case tF32:
		g.op(binary.LittleEndian.AppendUint32([]byte{0x43}, math.Float32bits(float32(n)-20))...)
	case tF64:
		g.op(binary.LittleEndian.AppendUint64([]byte{0x44}, math.Float64bits(float64(n)-20))...)
	case tV128:
		g.op(0xfd, 0x0c)
		for range 16 {
			g.op(byte(g.Uint32()))
		}
	}
}

// binary appends an operation with two operands and a result of type t. A float is limited to ±100, so that there is no NaN,
// whose bits depend on the processor. Operations on vectors of floats are those that do not make one.
func (g *generator) binary(t byte) {
	of := map[byte][][]byte{
		tI32: {{0x6a}, {0x6b}, {0x6c}, {0x71}, {0x73}, {0x74}, {0x6f}, {0x70}, {0x6d}, {0x6e}},
		tI64: {{0x7c}, {0x7d}, {0x7e}, {0x83}, {0x85}, {0x86}, {0x81}, {0x82}, {0x7f}, {0x80}},
		tF32: {{0x92}, {0x93}, {0x94}, {0x96}, {0x97}, {0x98}},
		tF64: {{0xa0}, {0xa1}, {0xa2}, {0xa4}, {0xa5}, {0xa6}},
		tV128: vectors(0x0e, 0x0e, 0x23, 0x4c, 0x4e, 0x51, 0x65, 0x66, 0x6e, 0x73, 0x76, 0x79, 0x7b, 0x7b, 0x82, 0x82, 0x85, 0x86, 0x8e, 0x93, 0x95, 0x99,
			0x9b, 0x9f, 0xae, 0xae, 0xb1, 0xb1, 0xb5, 0xba, 0xbc, 0xbf, 0xce, 0xce, 0xd1, 0xd1, 0xd5, 0xdf, 0xea, 0xeb, 0xf6, 0xf7),
	}[t]
	g.op(of[g.IntN(len(of))]...)
	switch t {
	case tF32:
		g.op(0x43, 0, 0, 0xc8, 0x42, 0x96, 0x43, 0, 0, 0xc8, 0xc2, 0x97) // 100, min, -100, max
	case tF64:
		g.op(0x44, 0, 0, 0, 0, 0, 0, 0x59, 0x40, 0xa4, 0x44, 0, 0, 0, 0, 0, 0, 0x59, 0xc0, 0xa5)
	}
}

// odd makes an integer odd, so that it is a divisor.
func (g *generator) odd(t byte) {
	g.op(map[byte][]byte{tI32: {0x41, 1, 0x72}, tI64: {0x42, 1, 0x84}}[t]...)
}

// convert pushes a value of type t that is made of one of another type.
func (g *generator) convert(t byte) {
	type from struct {
		t  byte
		op []byte
	}
	of := map[byte][]from{
		tI32:  {{tI64, []byte{0xa7}}, {tF64, []byte{0xfc, 2}}, {tF32, []byte{0xfc, 1}}, {tV128, []byte{0xfd, 0x1b, 2}}},
		tI64:  {{tI32, []byte{0xac}}, {tF64, []byte{0xfc, 6}}, {tF32, []byte{0xfc, 5}}, {tV128, []byte{0xfd, 0x1d, 1}}},
		tF32:  {{tI32, []byte{0xb2}}, {tI64, []byte{0xb5}}, {tF64, []byte{0xb6}}},
		tF64:  {{tI32, []byte{0xb8}}, {tI64, []byte{0xb9}}, {tF32, []byte{0xbb}}},
		tV128: {{tI32, []byte{0xfd, 0x11}}, {tI64, []byte{0xfd, 0x12}}, {tF32, []byte{0xfd, 0x13}}, {tF64, []byte{0xfd, 0x14}}},
	}[t]
	if t == tV128 {
		for _, op := range vectors(0x4d, 0x4d, 0x60, 0x62, 0x7c, 0x81, 0x87, 0x8a, 0xa0, 0xa1, 0xa7, 0xaa, 0xc0, 0xc1, 0xc7, 0xca) {
			of = append(of, from{tV128, op})
		}
	}
	if t == tI32 {
		for _, op := range vectors(0x53, 0x53, 0x63, 0x64, 0x83, 0x84, 0xa3, 0xa4, 0xc3, 0xc4) {
			of = append(of, from{tV128, op})
		}
	}
	c := of[g.IntN(len(of))]
	g.value(c.t)
	if t == tV128 && c.t == tI32 && g.IntN(2) == 0 {
		shifts := vectors(0x6b, 0x6d, 0x8b, 0x8d, 0xab, 0xad, 0xcb, 0xcd)
		g.any(0x20, tV128)
		g.any(0x20, tI32)
		g.op(shifts[g.IntN(len(shifts))]...)
		g.any(0x21, tV128)
	}
	g.op(c.op...)
}

// value pushes a value of type t.
func (g *generator) value(t byte) {
	g.depth++
	defer func() { g.depth-- }()
	n := 12
	if g.depth > 4 {
		n = 3
	}
	switch g.IntN(n) {
	case 0:
		g.constant(t)
	case 1, 2:
		g.any(0x20, t)
	case 3, 4:
		g.value(t)
		g.value(t)
		if g.IntN(8) > 0 {
			g.odd(t)
		}
		g.binary(t)
	case 5:
		g.convert(t)
	case 6: // a call returns its second argument
		g.value(t)
		g.value(t)
		g.op(0x10, callee(t))
	case 7: // a block, which may be left before its end
		g.op(0x02, t)
		g.value(t)
		g.value(tI32)
		g.op(0x0d, 0)
		g.op(0x1a)
		g.value(t)
		g.op(0x0b)
	case 8:
		g.value(tI32)
		g.op(0x04, t)
		g.value(t)
		g.op(0x05)
		g.value(t)
		g.op(0x0b)
	case 9:
		g.value(t)
		g.value(t)
		g.value(tI32)
		g.op(0x1b)
	default:
		g.choice(t)
	}
}

// hash adds local i of type t to the hash on the stack, an i64.
func (g *generator) hash(t byte, i int) {
	g.op(0x42, 31, 0x7e)
	g.local(0x20, t, i)
	switch t {
	case tI32:
		g.op(0xad)
	case tF32:
		g.op(0xbc, 0xad)
	case tF64:
		g.op(0xbd)
	case tV128:
		g.op(0xfd, 0x1d, 0)
		g.local(0x20, t, i)
		g.op(0xfd, 0x1d, 1, 0x85)
	}
	g.op(0x7c)
}

// program returns a random module with a function f (param i32) (result i64).
func program(r *rand.Rand) []byte {
	g := &generator{Rand: r, locals: map[byte]int{}}
	counter := byte(1)
	for _, t := range types() {
		g.locals[t] = 2 + r.IntN(mostLocals-1)
		counter += byte(g.locals[t])
	}
	for k, t := range types() {
		load := [][]byte{{0x28, 2, 0}, {0x29, 3, 0}, {0x2a, 2, 0}, {0x2b, 3, 0}, {0xfd, 0, 3, 0}}[k]
		for i := range g.locals[t] {
			g.op(0x20, 0, 0x41, 8, 0x6c, 0x41, byte(i), 0x6a) // address 8 × argument + i
			g.op(load...)
			g.local(0x21, t, i)
		}
	}
	g.op(0x41, 3, 0x21, counter, 0x03, 0x40) // a loop
	some := types()
	r.Shuffle(5, func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:1+r.IntN(5)]
	for range 4 + g.IntN(24) {
		t := some[g.IntN(len(some))]
		switch g.IntN(7) {
		case 0:
			g.op(0x10, 0)
			continue
		case 3:
			g.any(0x20, t)
			g.any(0x20, t)
			g.odd(t)
			g.binary(t)
		case 1:
			g.value(t)
		case 2:
			g.any(0x20, t)
			g.any(0x20, t)
			g.op(0x10, callee(t))
		default:
			g.choice(t)
		}
		g.any(0x21, t)
	}
	g.op(0x20, counter, 0x41, 1, 0x6b, 0x22, counter, 0x0d, 0, 0x0b)
	g.op(0x42, 0)
	for _, t := range types() {
		for i := range g.locals[t] {
			g.hash(t, i)
		}
	}
	locals := []byte{6}
	for _, t := range types() {
		locals = append(locals, byte(g.locals[t]), t)
	}
	f := append(append(locals, 1, tI32), append(g.b, 0x0b)...)

	// $h may call itself, so it is not inlined, and callers have to save their registers.
	h := []byte{0, 0x23, 0, 0x41, 1, 0x6a, 0x24, 0, 0x23, 0, 0x41, 0, 0x46, 0x04, 0x40, 0x10, 0, 0x0b, 0x0b}
	second := []byte{0, 0x10, 0, 0x20, 1, 0x0b} // call $h, local.get 1
	code := [][]byte{h, second, second, second, second, second, f}
	kinds := [][]byte{{0x60, 0, 0}}
	for _, t := range types() {
		kinds = append(kinds, []byte{0x60, 2, t, t, 1, t})
	}
	kinds = append(kinds, []byte{0x60, 1, tI32, 1, tI64})
	data := []byte{0, 0x41, 0, 0x0b, 128, 1} // an active segment at 0 of 128 bytes
	for i := range 128 {
		data = append(data, byte(i*i+3*i)&0x3f) // numbers that are finite as floats
	}
	m := []byte("\x00asm\x01\x00\x00\x00")
	m = appendSection(m, 1, kinds...)
	m = appendSection(m, 3, []byte{0}, []byte{1}, []byte{2}, []byte{3}, []byte{4}, []byte{5}, []byte{6})
	m = appendSection(m, 5, []byte{0, 1})
	m = appendSection(m, 6, []byte{tI32, 1, 0x41, 0, 0x0b})
	m = appendSection(m, 7, []byte{1, 'f', 0, 6})
	bodies := make([][]byte, len(code))
	for i, c := range code {
		bodies[i] = append(binary.AppendUvarint(nil, uint64(len(c))), c...)
	}
	m = appendSection(m, 10, bodies...)
	return appendSection(m, 11, data)
}

// appendSection appends a section with a vector of elements.
func appendSection(m []byte, id byte, elements ...[]byte) []byte {
	content := binary.AppendUvarint(nil, uint64(len(elements)))
	for _, e := range elements {
		content = append(content, e...)
	}
	return append(append(append(m, id), binary.AppendUvarint(nil, uint64(len(content)))...), content...)
}
