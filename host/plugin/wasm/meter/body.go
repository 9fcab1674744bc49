package meter

import (
	"bytes"
	"fmt"
	"slices"
)

// edit is an insertion into a function body.
type edit struct {
	pos   int // offset in the body
	kind  editKind
	cost  int64 // fuel of the block; base cost of the bulk operation
	unit  int64 // bulk: fuel per element if positive, elements per unit of fuel if negative
	check bool
	by    replacement
}

type editKind uint8

const (
	editBlock   editKind = iota // charge for a basic block
	editBulk                    // charge for an operation by the number on top of the stack
	editReturn                  // a return in a function with a frame: branch to the end of the wrapping block instead
	editReplace                 // an instruction that is replaced
)

// frame is an open block, loop, if or the function itself.
type frame struct {
	kind     byte // the opcode; 0 for the function
	targeted bool // a branch targets its label
	hasElse  bool
	header   int   // index of the edit of a loop's header, -1: unreachable code
	arity    int   // parameters of a loop, results of other blocks
	sets     int   // assignments to locals before it
	passed   int64 // scanner.passed at its start
	since    int64 // scanner.since at its start

	typ         FuncType
	height      int  // of the operand stack, without the parameters
	unreachable bool // the rest of it
	start       flow
	following   edges // to the block after its end
	loopEdges   int   // to the header
}

// body is the result of scanning a function.
type body struct {
	locals   int // declared, without parameters
	slots    int // of locals, 8 bytes each
	width    int // slots of the widest local or parameter
	groups   int // of the locals vector
	localsAt int // offset of the first group
	code     int // offset of the first instruction
	end      int // offset of the last end
	count    int // instructions
	calls    int
	loops    int
	work     work
	total    int64 // fuel of all blocks
	scratch  scratch
	edits    []edit
}

type scanner struct {
	m      *module
	r      reader
	fn     int
	params int
	locals []byte // types, parameters first
	b      *body
	stack  []frame
	loops  int // currently open
	block  int // index of the edit of the current block, -1: unreachable code
	sets   int // assignments to locals so far
	// passed is the fuel of all instructions so far, including functions that do not check. since is the most of it that can
	// be used on a path to this place after the last check.
	passed, since int64
	flow          flow
	operands      []byte // types, see operands.go
}

// scan reads the body of function fn (index including imports), checks all indices in it, and finds where to charge fuel.
func (m *module) scan(fn int, raw []byte, b *body, stack []frame) ([]frame, error) {
	t := m.types[m.funcs[fn]]
	s := &scanner{m: m, r: reader{b: raw}, fn: fn, params: len(t.Params), locals: slices.Clone(t.Params), b: b, stack: stack[:0]}
	*b = body{edits: b.edits[:0]}
	s.readLocals()
	b.code = s.r.pos
	b.work.values = s.params + b.locals + 2
	s.flow.live = true
	s.newBlock()
	s.stack = append(s.stack, frame{header: -1, start: s.flow, typ: FuncType{Results: t.Results}})
	s.beginBlock(false)
	s.fuelCheck()
	at := s.r.pos
	for s.r.err == nil && len(s.stack) > 0 {
		if s.r.left() == 0 {
			s.r.fail("unexpected end inside a block")
			break
		}
		at = s.r.pos
		s.instruction()
	}
	b.end = at
	if s.r.err == nil && s.r.left() > 0 {
		s.r.fail("%d bytes after the end", s.r.left())
	}
	b.work.add(b.scratch)
	if space := b.work.space(); s.r.err == nil && space > int64(m.limits.FunctionWork) {
		w := &b.work
		s.r.fail("too expensive to compile: %d instructions with %d calls, %d locals, %d blocks and %d edges between them make %d, the limit is %d",
			b.count, b.calls, s.params+b.locals, w.blocks, w.edges, space, m.limits.FunctionWork)
		at = -1
	}
	if s.r.err != nil {
		return s.stack, &Error{Section: "code", Func: fn, Name: m.names[uint32(fn)], Offset: at, Err: s.r.err}
	}
	s.placeChecks()
	return s.stack, nil
}

func (s *scanner) readLocals() {
	s.b.groups = s.r.count("groups of locals", s.m.limits.Locals, 2)
	s.b.localsAt = s.r.pos
	s.b.width = 1
	if bytes.IndexByte(s.m.types[s.m.funcs[s.fn]].Params, 0x7b) >= 0 {
		s.b.width = 2
	}
	for i := 0; i < s.b.groups && s.r.err == nil; i++ {
		n := s.r.u32()
		t := s.r.valType()
		if s.r.err != nil {
			return
		}
		if int64(n)+int64(s.b.locals)+int64(s.params) > int64(s.m.limits.Locals) {
			s.r.fail("at least %d locals, the limit is %d", int64(n)+int64(s.b.locals)+int64(s.params), s.m.limits.Locals)
			return
		}
		s.locals = append(s.locals, bytes.Repeat([]byte{t}, int(n))...)
		s.b.locals += int(n)
		s.b.slots += int(n)
		if t == 0x7b {
			s.b.slots += int(n)
			s.b.width = 2
		}
	}
}

// beginBlock starts a basic block at the current place.
func (s *scanner) beginBlock(loop bool) {
	s.block = len(s.b.edits)
	s.b.edits = append(s.b.edits, edit{pos: s.r.pos, check: loop})
	s.b.work.moves += 4 // the charge
	s.find()
	if loop {
		s.since = 0
		s.fuelCheck()
	}
}

// join starts the block in which the paths through the block f meet, and charges for the copies that meeting takes: an SSA
// compiler may need one for each local that is assigned in f.
func (s *scanner) join(f frame) {
	s.beginBlock(false)
	s.since = f.since + s.passed - f.passed // a path may have branched around the checks in f
	s.charge(s.copiesOf(f))
}

func (s *scanner) copiesOf(f frame) int64 {
	return copies(min((s.sets-f.sets)*s.b.width, s.params*s.b.width+s.b.slots) + f.arity)
}

func (s *scanner) charge(n int64) {
	s.b.total += n
	s.passed += n
	s.since += n
	if s.block >= 0 {
		s.b.edits[s.block].cost += n
	}
}

// target marks the block of label l as a branch target.
func (s *scanner) target(l uint32) {
	if s.r.err != nil {
		return
	}
	if int64(l) >= int64(len(s.stack)) {
		s.r.fail("a branch to label %d, only %d blocks are open", l, len(s.stack))
		return
	}
	f := &s.stack[len(s.stack)-1-int(l)]
	f.targeted = true
	if s.flow.live {
		s.edge(f)
	}
}

// placeChecks decides which blocks check fuel, and drops blocks that cost nothing.
func (s *scanner) placeChecks() {
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
		if e.kind == editBlock && e.cost == 0 && !e.check && i > 0 {
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
