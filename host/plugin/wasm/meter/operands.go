package meter

// Types of operands. References are not distinguished.
const (
	none = 0 // also: of any type, in unreachable code
	i32  = 0x7f
	i64  = 0x7e
	f32  = 0x7d
	f64  = 0x7c
	v128 = 0x7b
	ref  = 0x70
)

// effect is what an instruction does with the operand stack: it takes so many operands, and leaves a result or none.
type effect struct {
	pops   int8
	result byte
}

// operate applies an effect to the operand stack.
func (s *scanner) operate(e effect) {
	s.pop(int(e.pops))
	if e.result != none {
		s.push(e.result)
	}
}

func (s *scanner) push(types ...byte) { s.operands = append(s.operands, types...) }

// pop takes n operands and returns the type of the last one. Code in which one is missing is not valid; refused here, it cannot
// hide an instruction that has to be replaced.
func (s *scanner) pop(n int) (t byte) {
	f := &s.stack[len(s.stack)-1]
	for ; n > 0; n-- {
		switch top := len(s.operands) - 1; {
		case top >= f.height:
			t, s.operands = s.operands[top], s.operands[:top]
		case f.unreachable:
			t = none
		default:
			s.r.fail("invalid code: an operand is missing")
		}
	}
	return t
}

// closed takes what a frame, or the then part of an if, leaves.
func (s *scanner) closed(f *frame) {
	if n := len(s.operands) - f.height; n != len(f.typ.Results) && !f.unreachable {
		s.r.fail("invalid code: a block leaves %d operands, its type has %d results", n, len(f.typ.Results))
	}
	s.operands = s.operands[:f.height]
	f.unreachable = false
}

// effects sets the effects of opcodes in ranges.
func effects(set func(op int, e effect)) func(e effect, ranges ...int) {
	return func(e effect, ranges ...int) {
		for r := 0; r < len(ranges); r += 2 {
			for op := ranges[r]; op <= ranges[r+1]; op++ {
				set(op, e)
			}
		}
	}
}

// setEffects sets the effects of the opcodes for which they depend on nothing else.
func setEffects(t *[256]opcode) {
	set := effects(func(op int, e effect) { t[op].effect = e })
	set(effect{1, none}, 0x0d, 0x0e, 0x11, 0x11, 0x1a, 0x1a, 0x21, 0x21, 0x24, 0x24) // br_if, br_table, call_indirect, drop, local.set, global.set
	set(effect{1, ref}, 0x25, 0x25)
	set(effect{2, none}, 0x26, 0x26)
	set(effect{1, i32}, 0x28, 0x28, 0x2c, 0x2f) // loads
	set(effect{1, i64}, 0x29, 0x29, 0x30, 0x35)
	set(effect{1, f32}, 0x2a, 0x2a)
	set(effect{1, f64}, 0x2b, 0x2b)
	set(effect{2, none}, 0x36, 0x3e) // stores
	set(effect{0, i32}, 0x3f, 0x3f, 0x41, 0x41)
	set(effect{1, i32}, 0x40, 0x40)
	set(effect{0, i64}, 0x42, 0x42)
	set(effect{0, f32}, 0x43, 0x43)
	set(effect{0, f64}, 0x44, 0x44)
	set(effect{1, i32}, 0x45, 0x45, 0x50, 0x50) // eqz
	set(effect{2, i32}, 0x46, 0x4f, 0x51, 0x66) // comparisons
	set(effect{1, i32}, 0x67, 0x69, 0xa7, 0xab, 0xbc, 0xbc, 0xc0, 0xc1, 0xd1, 0xd1)
	set(effect{2, i32}, 0x6a, 0x78)
	set(effect{1, i64}, 0x79, 0x7b, 0xac, 0xb1, 0xbd, 0xbd, 0xc2, 0xc4)
	set(effect{2, i64}, 0x7c, 0x8a)
	set(effect{1, f32}, 0x8b, 0x91, 0xb2, 0xb6, 0xbe, 0xbe)
	set(effect{2, f32}, 0x92, 0x98)
	set(effect{1, f64}, 0x99, 0x9f, 0xb7, 0xbb, 0xbf, 0xbf)
	set(effect{2, f64}, 0xa0, 0xa6)
	set(effect{0, ref}, 0xd0, 0xd0, 0xd2, 0xd2)
}

// newVectors returns the effects of the opcodes with prefix 0xfd.
func newVectors() *[256]effect {
	var t [256]effect
	set := effects(func(op int, e effect) { t[op] = e })
	set(effect{1, v128}, 0x00, 0xff)
	set(effect{0, v128}, 0x0c, 0x0c)
	set(effect{2, none}, 0x0b, 0x0b, 0x58, 0x5b)
	set(effect{3, v128}, 0x52, 0x52)
	set(effect{1, i32}, 0x15, 0x16, 0x18, 0x19, 0x1b, 0x1b) // extract_lane
	set(effect{1, i64}, 0x1d, 0x1d)
	set(effect{1, f32}, 0x1f, 0x1f)
	set(effect{1, f64}, 0x21, 0x21)
	set(effect{1, i32}, 0x53, 0x53, 0x63, 0x64, 0x83, 0x84, 0xa3, 0xa4, 0xc3, 0xc4)                          // any_true, all_true, bitmask
	set(effect{2, v128}, 0x0d, 0x0e, 0x17, 0x17, 0x1a, 0x1a, 0x1c, 0x1c, 0x1e, 0x1e, 0x20, 0x20, 0x22, 0x22, // shuffle, swizzle, replace_lane
		0x23, 0x4c, 0x4e, 0x51, 0x54, 0x57, // comparisons, bitwise, load_lane
		0x65, 0x66, 0x6b, 0x73, 0x76, 0x79, 0x7b, 0x7b, // 8-bit lanes
		0x82, 0x82, 0x85, 0x86, 0x8b, 0x93, 0x95, 0x99, 0x9b, 0x9f, // 16-bit lanes
		0xab, 0xae, 0xb1, 0xb1, 0xb5, 0xba, 0xbc, 0xbf, // 32-bit lanes
		0xcb, 0xce, 0xd1, 0xd1, 0xd5, 0xdf, // 64-bit lanes
		0xe4, 0xeb, 0xf0, 0xf7) // floats
	return &t
}
