package meter

import "fmt"

// edit is something that the rewritten body has and the guest's does not, at a place in the guest's body.
type edit struct {
	pos   int // offset in the body
	kind  editKind
	cost  int64 // fuel of the block; of the bulk operation before its size
	unit  int64 // bulk: fuel for each of what is counted, or what is counted for each unit of fuel when negative
	check bool
}

type editKind uint8

const (
	editBlock  editKind = iota // charge for a basic block
	editBulk                   // charge for an operation by the number on top of the stack
	editReturn                 // a return in a function with a frame: leave the wrapping block instead
)

// frame is an open block, loop, if or the function itself.
type frame struct {
	kind     byte // the opcode; 0 for the function
	targeted bool // a branch leads to its label
	elsed    bool
}

// body is what one pass over a function found out.
type body struct {
	locals   int // declared, parameters not counted
	slots    int // of locals, in units of 8 bytes
	groups   int // of the locals vector
	localsAt int // offset of the first group
	code     int // offset of the first instruction
	end      int // offset of the last end
	count    int // instructions
	joins    int // places where control flow joins
	calls    int
	accesses int // loads and stores
	loops    int
	total    int64 // fuel of all blocks together
	bulk     bool
	edits    []edit
}

type scanner struct {
	m      *module
	r      reader
	fn     int
	params int
	b      *body
	stack  []frame
	loops  int // open ones
	block  int // index of the current block's edit, -1: unreachable code
}

// scan reads the body of function fn (imports counted), checks all of its indices, and finds where fuel is charged.
func (m *module) scan(fn int, raw []byte, b *body, stack []frame) ([]frame, error) {
	s := &scanner{m: m, r: reader{b: raw}, fn: fn, params: len(m.types[m.funcs[fn]].Params), b: b, stack: stack[:0]}
	*b = body{edits: b.edits[:0]}
	s.readLocals()
	b.code = s.r.pos
	s.stack = append(s.stack, frame{})
	s.begin(false)
	at := s.r.pos
	for s.r.err == nil && len(s.stack) > 0 {
		if s.r.left() == 0 {
			s.r.fail("it ends inside a block")
			break
		}
		at = s.r.pos
		s.instruction()
	}
	b.end = at
	if s.r.err == nil && s.r.left() > 0 {
		s.r.fail("%d bytes follow its end", s.r.left())
	}
	if s.r.err == nil {
		if work := b.work(s.params); work > m.limits.FunctionWork {
			s.r.fail("too dear to compile: %d instructions, %d calls, %d loads and stores, %d locals × %d joins of control flow and %d loops make %d, the limit is %d",
				b.count, b.calls, b.accesses, s.params+b.locals, b.joins, b.loops, work, m.limits.FunctionWork)
			at = -1
		}
	}
	if s.r.err != nil {
		return s.stack, &Error{Section: "code", Func: fn, Name: m.names[uint32(fn)], Offset: at, Err: s.r.err}
	}
	s.settle()
	return s.stack, nil
}

// work estimates what compiling takes: see Limits.Work. Nothing overflows: a body has at most as many of each as bytes.
func (b *body) work(params int) int {
	return b.count + (params+b.locals)*b.joins + b.joins*b.joins/64 + 100*b.loops + 8*b.calls + 3*b.accesses
}

func (s *scanner) readLocals() {
	s.b.groups = s.r.count("groups of locals", s.m.limits.Locals, 2)
	s.b.localsAt = s.r.pos
	for i := 0; i < s.b.groups && s.r.err == nil; i++ {
		n := s.r.u32()
		t := s.r.valType()
		if s.r.err != nil {
			return
		}
		if int64(n)+int64(s.b.locals)+int64(s.params) > int64(s.m.limits.Locals) {
			s.r.fail("%d locals and more, the limit is %d", int64(n)+int64(s.b.locals)+int64(s.params), s.m.limits.Locals)
			return
		}
		s.b.locals += int(n)
		s.b.slots += int(n)
		if t == 0x7b {
			s.b.slots += int(n)
		}
	}
}

// begin starts a basic block at the current place.
func (s *scanner) begin(loop bool) {
	s.block = len(s.b.edits)
	s.b.edits = append(s.b.edits, edit{pos: s.r.pos, check: loop})
}

func (s *scanner) charge(n int64) {
	s.b.total += n
	if s.block >= 0 {
		s.b.edits[s.block].cost += n
	}
}

// target marks the block that label l leads to.
func (s *scanner) target(l uint32) {
	if s.r.err != nil {
		return
	}
	if int64(l) >= int64(len(s.stack)) {
		s.r.fail("a branch to label %d, only %d blocks are open", l, len(s.stack))
		return
	}
	s.stack[len(s.stack)-1-int(l)].targeted = true
	s.b.joins++
}

func (s *scanner) instruction() {
	start := s.r.pos
	op := s.r.byte()
	info := s.m.ops[op]
	s.b.count++
	s.charge(int64(info.cost))
	switch info.imm {
	case immInvalid:
		s.r.fail("opcode 0x%02x: %s", op, refusedOpcode(op))
	case immNone:
		s.plain(op, start)
	case immBlock:
		s.open(op)
	case immLabel:
		s.target(s.r.u32())
		if op == 0x0c {
			s.block = -1
		} else {
			s.begin(false)
		}
	case immBrTable:
		for i, n := 0, s.r.count("labels of br_table", s.m.limits.BrTable, 1); i <= n && s.r.err == nil; i++ {
			s.target(s.r.u32())
		}
		s.block = -1
	case immLocal:
		if i := s.r.u32(); s.r.err == nil && int64(i) >= int64(s.params+s.b.locals) {
			s.r.fail("local %d does not exist, there are %d", i, s.params+s.b.locals)
		}
	case immGlobal:
		if i := s.r.u32(); s.r.err == nil && int64(i) >= int64(s.m.globals) {
			s.r.fail("global %d does not exist, there are %d", i, s.m.globals)
		}
	case immTable:
		s.table()
	case immMemArg:
		s.memArg()
	case immZero:
		if z := s.r.byte(); s.r.err == nil && z != 0 {
			s.r.fail("memory %d: only one memory is supported", z)
		}
		if op == 0x40 {
			s.sized(start, costGrow, costPage)
		}
	case immI32:
		s.r.sleb(32)
	case immI64:
		s.r.sleb(64)
	case immF32:
		s.r.bytes(4)
	case immF64:
		s.r.bytes(8)
	case immSelect:
		if n := s.r.u32(); s.r.err == nil && n != 1 {
			s.r.fail("select with %d types", n)
		}
		s.r.valType()
	case immCall:
		if f := s.m.funcIndex(&s.r, false); int(f) < len(s.m.imports) {
			s.charge(costHost)
		}
		s.b.calls++
	case immIndirect:
		s.m.typeIndex(&s.r)
		s.table()
		if s.m.hostElem {
			s.charge(costHost)
		}
		s.b.calls++
	case immRefNull:
		s.r.refType()
	case immRefFunc:
		s.m.funcIndex(&s.r, false)
	case immMisc:
		s.misc(start)
	case immVector:
		s.vector()
	}
}

// plain handles the opcodes without an immediate of which some change the flow of control.
func (s *scanner) plain(op byte, start int) {
	switch op {
	case 0x00: // unreachable
		s.block = -1
	case 0x05: // else
		top := &s.stack[len(s.stack)-1]
		if top.kind != 0x04 || top.elsed {
			s.r.fail("else outside of an if")
			return
		}
		top.elsed = true
		s.begin(false)
	case 0x0b: // end
		top := s.stack[len(s.stack)-1]
		s.stack = s.stack[:len(s.stack)-1]
		if top.kind == 0x03 {
			s.loops--
		}
		if top.kind == 0x04 || (top.kind == 0x02 && top.targeted) {
			s.b.joins++
			s.begin(false)
		}
	case 0x0f: // return
		s.b.edits = append(s.b.edits, edit{pos: start, kind: editReturn, cost: int64(len(s.stack) - 1)})
		s.b.joins++
		s.block = -1
	}
}

// open reads the type of a block and enters it.
func (s *scanner) open(op byte) {
	if t := s.r.sleb(33); s.r.err == nil {
		switch {
		case t >= 0:
			if t >= int64(len(s.m.types)) {
				s.r.fail("a block of type %d, there are %d", t, len(s.m.types))
			}
		case t == -0x40: // nothing
		default:
			if t < -0x40 {
				s.r.fail("block type %d is not known", t)
				return
			}
			one := reader{b: []byte{byte(t & 0x7f)}}
			one.valType()
			if one.err != nil {
				s.r.fail("block type: %w", one.err)
			}
		}
	}
	if len(s.stack) >= s.m.limits.Nesting {
		s.r.fail("more than %d blocks inside one another", s.m.limits.Nesting)
	}
	s.stack = append(s.stack, frame{kind: op})
	switch op {
	case 0x03:
		s.loops++
		s.b.joins++
		s.b.loops++
		if s.b.loops > s.m.limits.Loops {
			s.r.fail("more than %d loops", s.m.limits.Loops)
		}
		if s.loops > s.m.limits.LoopDepth {
			s.r.fail("more than %d loops inside one another", s.m.limits.LoopDepth)
		}
		if s.block >= 0 {
			s.begin(true)
			s.charge(costPlain)
		}
	case 0x04:
		if s.block >= 0 {
			s.begin(false)
		}
	}
}

func (s *scanner) table() uint32 {
	t := s.r.u32()
	if s.r.err == nil && int64(t) >= int64(len(s.m.tables)) {
		s.r.fail("table %d does not exist, there are %d", t, len(s.m.tables))
	}
	return t
}

func (s *scanner) memArg() {
	s.b.accesses++
	if s.m.memory == nil {
		s.r.fail("a memory instruction without a memory")
	}
	if align := s.r.u32(); s.r.err == nil && align >= 32 {
		s.r.fail("alignment 2^%d: several memories or bad alignment", align)
	}
	s.r.u32()
}

// sized charges an operation that began at start by the number on top of the stack.
func (s *scanner) sized(start int, cost, unit int64) {
	s.b.bulk = true
	s.b.total += cost
	s.b.edits = append(s.b.edits, edit{pos: start, kind: editBulk, cost: cost, unit: unit, check: true})
}

// misc reads the instructions behind prefix 0xfc.
func (s *scanner) misc(start int) {
	op := s.r.u32()
	if s.r.err != nil {
		return
	}
	if s.r.pos-start != 2 {
		s.r.fail("opcode 0xfc %d is not written in its shortest form", op)
		return
	}
	zero := func() {
		if z := s.r.byte(); s.r.err == nil && z != 0 {
			s.r.fail("memory %d: only one memory is supported", z)
		}
		if s.m.memory == nil {
			s.r.fail("a memory instruction without a memory")
		}
	}
	data := func() {
		if x := s.r.u32(); s.r.err == nil && (int64(x) >= int64(s.m.datas) || !s.m.hasCount) {
			s.r.fail("data segment %d does not exist, the data count section says %d", x, s.m.datas)
		}
	}
	elem := func() {
		if x := s.r.u32(); s.r.err == nil && int64(x) >= int64(s.m.elements) {
			s.r.fail("element segment %d does not exist, there are %d", x, s.m.elements)
		}
	}
	switch {
	case op <= 7: // saturating truncation
		s.charge(costConvert)
	case op == 8: // memory.init
		data()
		zero()
		s.sized(start, costBulk, -bytesPerFuel)
	case op == 9: // data.drop
		data()
		s.charge(costDrop)
	case op == 10: // memory.copy
		zero()
		zero()
		s.sized(start, costBulk, -bytesPerFuel)
	case op == 11: // memory.fill
		zero()
		s.sized(start, costBulk, -bytesPerFuel)
	case op == 12: // table.init
		elem()
		s.table()
		s.sized(start, costBulk, costElement)
	case op == 13: // elem.drop
		elem()
		s.charge(costDrop)
	case op == 14: // table.copy
		s.table()
		s.table()
		s.sized(start, costBulk, costElement)
	case op == 15: // table.grow
		s.table()
		s.sized(start, costGrow, costNewElem)
	case op == 16: // table.size
		s.table()
		s.charge(costPlain)
	case op == 17: // table.fill
		s.table()
		s.sized(start, costBulk, costElement)
	default:
		s.r.fail("opcode 0xfc %d: it is no instruction of WebAssembly 2.0", op)
	}
}

// vector reads the instructions behind prefix 0xfd. Their number is LEB128 by the specification, but engines read it
// as one byte, so only the shortest form is let through: all see the same instruction.
func (s *scanner) vector() {
	start := s.r.pos
	op := s.r.u32()
	if s.r.err != nil {
		return
	}
	short := 1
	if op >= 0x80 {
		short = 2
	}
	switch {
	case op > 0xff:
		s.r.fail("opcode 0xfd %d: relaxed SIMD is not supported", op)
		return
	case s.r.pos-start != short:
		s.r.fail("opcode 0xfd %d is not written in its shortest form", op)
		return
	}
	s.charge(costVector)
	lane := func() { s.r.byte() }
	switch {
	case op <= 0x0b, op == 0x5c, op == 0x5d:
		s.memArg()
	case op >= 0x54 && op <= 0x5b:
		s.memArg()
		lane()
	case op == 0x0c, op == 0x0d:
		s.r.bytes(16)
	case op >= 0x15 && op <= 0x22:
		lane()
	}
}

// settle decides which blocks check their fuel, and drops those that cost nothing.
func (s *scanner) settle() {
	b := s.b
	first := &b.edits[0]
	first.check = b.calls > 0 || b.loops > 0 || b.total > smallLeaf
	if first.cost == 0 {
		first.cost = costPlain
	}
	kept := b.edits[:0]
	for i, e := range b.edits {
		if e.kind == editReturn && b.calls == 0 {
			continue
		}
		if e.kind == editBlock && e.cost == 0 && i > 0 {
			continue
		}
		kept = append(kept, e)
	}
	b.edits = kept
}

func (m *module) funcName(f int) string {
	if n := m.names[uint32(f)]; n != "" {
		return fmt.Sprintf(" (%s)", n)
	}
	return ""
}
