package meter

// misc reads the instructions with prefix 0xfc.
func (s *scanner) misc(start int) {
	op := s.r.u32()
	if s.r.err != nil {
		return
	}
	if s.r.pos-start != 2 {
		s.r.fail("opcode 0xfc %d is not in its shortest encoding", op)
		return
	}
	zero := func() {
		if z := s.r.byte(); s.r.err == nil && z != 0 {
			s.r.fail("memory %d: %s", z, multiMemory)
		}
		if s.m.memory == nil {
			s.r.fail("a memory instruction without a memory")
		}
	}
	data := func() {
		if x := s.r.u32(); s.r.err == nil && (int64(x) >= int64(s.m.dataSegments) || !s.m.hasCount) {
			s.r.fail("data segment %d does not exist, the data count section says %d", x, s.m.dataSegments)
		}
	}
	elem := func() {
		if x := s.r.u32(); s.r.err == nil && int64(x) >= int64(s.m.elementSegments) {
			s.r.fail("element segment %d does not exist, there are %d", x, s.m.elementSegments)
		}
	}
	switch op {
	case 0, 1, 2, 3:
		s.operate(effect{1, i32})
	case 4, 5, 6, 7:
		s.operate(effect{1, i64})
	case 8, 10, 11, 12, 14, 17:
		s.operate(effect{3, none})
	case 15:
		s.operate(effect{2, i32})
	case 16:
		s.operate(effect{0, i32})
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
		s.r.fail("opcode 0xfc %d: not an instruction of WebAssembly 2.0", op)
	}
}

// vector reads the instructions with prefix 0xfd. Their number is LEB128 by the specification, but engines read it
// as one byte, so only the shortest encoding is accepted: all engines then decode the same instruction.
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
		s.r.fail("opcode 0xfd %d: %s", op, relaxedSIMD)
		return
	case s.r.pos-start != short:
		s.r.fail("opcode 0xfd %d is not in its shortest encoding", op)
		return
	}
	s.charge(costVector)
	s.operate(s.m.vectors[op])
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
