package meter

func (s *scanner) instruction() {
	if s.since > checkEvery && s.block >= 0 {
		s.beginBlock(true)
	}
	start := s.r.pos
	op := s.r.byte()
	info := s.m.ops[op]
	s.b.count++
	s.b.work.moves++
	s.operate(info.effect)
	s.charge(int64(info.cost))
	switch info.imm {
	case immInvalid:
		s.r.fail("opcode 0x%02x: %s", op, refusedOpcode(op))
	case immNone:
		s.plain(op, start)
	case immBlock:
		s.openBlock(op)
	case immLabel:
		s.target(s.r.u32())
		if op == 0x0c {
			s.leaveUnreachable()
		} else {
			s.newBlock()
			s.beginBlock(false)
		}
	case immBrTable:
		for i, n := 0, s.r.count("labels of br_table", s.m.limits.BrTable, 1); i <= n && s.r.err == nil; i++ {
			before := s.flow
			s.newBlock() // for the arguments of each label
			s.target(s.r.u32())
			s.flow = before
		}
		s.leaveUnreachable()
	case immLocal:
		if op == 0x20 {
			s.find()
		}
		i := s.r.u32()
		switch {
		case s.r.err == nil && int64(i) >= int64(len(s.locals)):
			s.r.fail("local %d does not exist, there are %d", i, len(s.locals))
		case op != 0x20:
			s.sets++
		case s.r.err == nil:
			s.push(s.locals[i])
		}
	case immGlobal:
		s.find()
		i := s.r.u32()
		switch {
		case s.r.err == nil && int64(i) >= int64(len(s.m.globals)):
			s.r.fail("global %d does not exist, there are %d", i, len(s.m.globals))
		case op == 0x23 && s.r.err == nil:
			s.push(s.m.globals[i])
		}
	case immTable:
		s.table()
		s.trap(16)
	case immMemArg:
		s.memArg()
	case immZero:
		if z := s.r.byte(); s.r.err == nil && z != 0 {
			s.r.fail("memory %d: %s", z, multiMemory)
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
		if op == 0x1c {
			if n := s.r.u32(); s.r.err == nil && n != 1 {
				s.r.fail("select with %d types", n)
			}
			s.r.valType()
		}
		s.selected(start)
	case immCall:
		f := s.m.funcIndex(&s.r, false)
		if s.r.err != nil {
			return
		}
		s.call(s.m.funcs[f], int(f) < len(s.m.imports))
	case immIndirect:
		t := s.m.typeIndex(&s.r)
		s.table()
		if s.r.err != nil {
			return
		}
		s.call(t, s.m.hostReachable)
		s.trap(48)
	case immRefNull:
		s.r.refType()
	case immRefFunc:
		s.r.fail("ref.func in code is not supported: the engine allocates a reference each time that it never frees; use a table")
	case immMisc:
		s.misc(start)
	case immVector:
		s.vector()
	}
}

// plain handles opcodes without an immediate, some of which change control flow.
func (s *scanner) plain(op byte, start int) {
	if s.m.ops[op].traps {
		s.trap(6)
	}
	switch op {
	case opCopysign32, opCopysign64, opRemS32, opRemU32, opRemS64, opRemU64:
		s.replace(start, replacement{op: op, typ: s.m.ops[op].result})
	case 0x00: // unreachable
		s.leaveUnreachable()
	case 0x05: // else
		top := &s.stack[len(s.stack)-1]
		if top.kind != 0x04 || top.hasElse {
			s.r.fail("else outside of an if")
			return
		}
		top.hasElse = true
		s.otherwise(top)
		s.beginBlock(false)
		s.since = top.since
	case 0x0b: // end
		top := s.stack[len(s.stack)-1]
		s.stack = s.stack[:len(s.stack)-1]
		s.leave(&top)
		switch {
		case top.kind == opLoop:
			s.loops--
			if top.header >= 0 {
				n := s.copiesOf(top)
				s.b.edits[top.header].cost += n
				s.b.total += n
				s.passed += n
			}
		case top.kind == opIf || top.kind == opBlock && top.targeted:
			s.join(top)
		}
	case 0x0f: // return
		s.b.edits = append(s.b.edits, edit{pos: start, kind: editReturn, cost: int64(len(s.stack) - 1)})
		if s.flow.live {
			s.edge(&s.stack[0])
		}
		s.leaveUnreachable()
	}
}

// leaveUnreachable is called after an instruction that does not continue with the next one.
func (s *scanner) leaveUnreachable() {
	s.block = -1
	s.flow.live = false
	f := &s.stack[len(s.stack)-1]
	f.unreachable = true
	s.operands = s.operands[:f.height]
}

// openBlock reads the type of a block and enters it.
func (s *scanner) openBlock(op byte) {
	f := frame{kind: op, header: -1, sets: s.sets, passed: s.passed, since: s.since}
	if t := s.r.sleb(33); s.r.err == nil {
		switch {
		case t >= 0:
			if t >= int64(len(s.m.types)) {
				s.r.fail("a block of type %d, there are %d", t, len(s.m.types))
				return
			}
			f.typ = s.m.types[t]
		case t == -0x40: // nothing
		default:
			if t < -0x40 {
				s.r.fail("unknown block type %d", t)
				return
			}
			one := reader{b: []byte{byte(t & 0x7f)}}
			f.typ.Results = []byte{one.valType()}
			if one.err != nil {
				s.r.fail("block type: %w", one.err)
			}
		}
	}
	f.arity = len(f.typ.Results)
	if op == opLoop {
		f.arity = len(f.typ.Params)
	}
	if len(s.stack) >= s.m.limits.Nesting {
		s.r.fail("more than %d nested blocks", s.m.limits.Nesting)
	}
	s.enter(&f)
	switch op {
	case opLoop:
		s.loops++
		s.b.loops++
		s.b.work.depth = max(s.b.work.depth, s.loops)
		if s.b.loops > s.m.limits.Loops {
			s.r.fail("more than %d loops", s.m.limits.Loops)
		}
		if s.loops > s.m.limits.LoopDepth {
			s.r.fail("more than %d nested loops", s.m.limits.LoopDepth)
		}
		if s.block >= 0 {
			s.beginBlock(true)
			s.charge(costPlain)
			f.header = s.block
		}
	case opIf:
		if s.block >= 0 {
			s.beginBlock(false)
		}
	}
	s.stack = append(s.stack, f)
}

// call charges for a call of a function of type t, without what it does.
func (s *scanner) call(t uint32, host bool) {
	s.b.calls++
	params, results := len(s.m.types[t].Params), len(s.m.types[t].Results)
	s.pop(params)
	s.push(s.m.types[t].Results...)
	w := &s.b.work
	w.moves += int64(8 + 2*(params+results))
	w.reloads += int64(s.m.mutableGlobals + 2) // and fuel and stack
	w.bounds += int64(s.flow.bounds)
	s.charge(copies(params + results))
	if host {
		s.charge(costHost)
	}
	s.passed += smallLeaf // the function may be one that does not check
	s.since += smallLeaf
}

func (s *scanner) table() {
	t := s.r.u32()
	if s.r.err == nil && int64(t) >= int64(len(s.m.tables)) {
		s.r.fail("table %d does not exist, there are %d", t, len(s.m.tables))
	}
}

func (s *scanner) memArg() {
	s.trap(3)
	s.find()
	s.find()
	if s.flow.live {
		s.flow.bounds++
	}
	if s.m.memory == nil {
		s.r.fail("a memory instruction without a memory")
	}
	if align := s.r.u32(); s.r.err == nil && align >= 32 {
		s.r.fail("alignment 2^%d: several memories or bad alignment", align)
	}
	s.r.u32()
	if s.m.memory != nil && s.m.memory.isFar() {
		s.charge(costFar)
	}
}

// sized charges an operation that began at start by the number on top of the stack.
func (s *scanner) sized(start int, cost, unit int64) {
	s.b.scratch = max(s.b.scratch, scratchSize)
	s.b.total += cost
	s.loop()
	s.b.edits = append(s.b.edits, edit{pos: start, kind: editBulk, cost: cost, unit: unit, check: true})
	s.since = 0
}
