package meter

// Names of the added exports.
const (
	FuelExport  = reserved + "fuel"
	StackExport = reserved + "stack"
	StartExport = reserved + "start" // the guest's start function, if it has one
)

// emitter writes the rewritten module.
type emitter struct {
	m     *module
	types []FuncType // those of the guest and of the wrapping blocks
	fuel  uint32     // index of the global
	stack uint32
}

func newEmitter(m *module) *emitter {
	return &emitter{m: m, types: m.types, fuel: uint32(len(m.globals)), stack: uint32(len(m.globals) + 1)}
}

// blockType appends the type of a block without parameters and with these results.
func (e *emitter) blockType(b []byte, results []byte) []byte {
	switch len(results) {
	case 0:
		return append(b, 0x40)
	case 1:
		return append(b, results[0])
	}
	return appendS64(b, int64(e.funcType(nil, results)))
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

func (e *emitter) global(b []byte, op byte, index uint32) []byte {
	return appendU32(append(b, op), index)
}

// charge appends global -= n.
func (e *emitter) charge(b []byte, global uint32, n int64) []byte {
	b = e.global(b, 0x23, global)
	b = appendS64(append(b, 0x42), n)
	b = append(b, 0x7d) // i64.sub
	return e.global(b, 0x24, global)
}

// check appends a trap if the fuel is below zero.
func (e *emitter) check(b []byte) []byte {
	b = e.global(b, 0x23, e.fuel)
	return append(b, 0x42, 0x00, 0x53, 0x04, 0x40, 0x00, 0x0b) // i64.const 0, i64.lt_s, if, unreachable, end
}

// checkBoth appends a trap if the fuel or the stack is below zero.
func (e *emitter) checkBoth(b []byte) []byte {
	b = e.global(e.global(b, 0x23, e.fuel), 0x23, e.stack)
	return append(b, 0x84, 0x42, 0x00, 0x53, 0x04, 0x40, 0x00, 0x0b) // i64.or, i64.const 0, i64.lt_s, if, unreachable, end
}

// body appends the rewritten body of function fn.
func (e *emitter) body(out []byte, fn int, raw []byte, b *body) []byte {
	t := e.m.types[e.m.funcs[fn]]
	scratch := uint32(len(t.Params) + b.locals)
	groups := b.scratch.groups()
	out = appendU32(out, uint32(b.groups+len(groups)/2))
	out = append(append(out, raw[b.localsAt:b.code]...), groups...)
	frame := frameSlots(len(t.Params), len(t.Results), b.slots, b.count)
	if b.calls > 0 {
		out = append(out, 0x02)
		out = e.blockType(out, t.Results)
	}
	at := b.code
	for i, ed := range b.edits {
		out = append(out, raw[at:ed.pos]...)
		at = ed.pos
		switch ed.kind {
		case editBlock:
			out = e.charge(out, e.fuel, ed.cost)
			switch {
			case i == 0 && b.calls > 0:
				out = e.checkBoth(e.charge(out, e.stack, frame))
			case ed.check:
				out = e.check(out)
			}
		case editBulk:
			out = e.sized(out, scratch, ed)
		case editReturn:
			out = appendU32(append(out, 0x0c), uint32(ed.cost))
			at++
		case editReplace:
			out = e.replace(out, scratch, ed.by)
			at += ed.by.length
		}
	}
	out = append(out, raw[at:b.end]...)
	if b.calls > 0 {
		out = append(out, 0x0b)
		out = e.check(e.charge(out, e.stack, -frame)) // or a deep recursion could return without a check
	}
	return append(out, 0x0b)
}

// sized appends the charge for an operation whose size is the i32 on the stack, which stays there.
func (e *emitter) sized(b []byte, scratch uint32, ed edit) []byte {
	b = appendU32(append(b, 0x22), scratch) // local.tee
	b = e.global(b, 0x23, e.fuel)
	b = appendU32(append(b, 0x20), scratch) // local.get
	b = append(b, 0xad)                     // i64.extend_i32_u
	if ed.unit < 0 {
		b = append(appendS64(append(b, 0x42), -ed.unit), 0x80) // i64.div_u by a constant power of two: a shift
	} else {
		b = append(appendS64(append(b, 0x42), ed.unit), 0x7e) // i64.mul
	}
	b = append(b, 0x7d) // i64.sub
	b = append(appendS64(append(b, 0x42), ed.cost), 0x7d)
	return e.check(e.global(b, 0x24, e.fuel))
}

func (e *emitter) section(out []byte, id byte, content []byte) []byte {
	out = append(out, id)
	out = appendU32(out, uint32(len(content)))
	return append(out, content...)
}

// module returns the whole module. code is the content of the code section; it is written first, as it adds types.
func (e *emitter) module(code []byte) []byte {
	m := e.m
	out := make([]byte, 0, len(code)*5/4+1<<16)
	out = append(out, "\x00asm\x01\x00\x00\x00"...)
	for _, id := range []int{secType, secImport, secFunction, secTable, secMemory, secGlobal, secExport,
		secElement, secDataCount, secCode, secData} {
		content := m.sections[id]
		switch id {
		case secType:
			content = e.typeSection()
		case secTable:
			content = e.tableSection()
		case secGlobal:
			content = e.globalSection()
		case secExport:
			content = e.exportSection()
		case secCode:
			content = code
		}
		if content != nil {
			out = e.section(out, byte(id), content)
		}
	}
	return e.names(out)
}

func (e *emitter) typeSection() []byte {
	if len(e.types) == 0 {
		return nil
	}
	b := appendU32(nil, uint32(len(e.types)))
	for _, t := range e.types {
		b = append(b, 0x60)
		b = append(appendU32(b, uint32(len(t.Params))), t.Params...)
		b = append(appendU32(b, uint32(len(t.Results))), t.Results...)
	}
	return b
}

func (e *emitter) tableSection() []byte {
	if len(e.m.tables) == 0 {
		return nil
	}
	b := appendU32(nil, uint32(len(e.m.tables)))
	for _, t := range e.m.tables {
		b = append(b, t.ref, 1)
		b = appendU32(appendU32(b, t.min), t.max)
	}
	return b
}

// vector splits the content of a section into the number of elements and their bytes.
func vector(content []byte) (uint32, []byte) {
	r := reader{b: content}
	if len(content) == 0 {
		return 0, nil
	}
	n := r.u32()
	return n, content[r.pos:]
}

func (e *emitter) globalSection() []byte {
	n, rest := vector(e.m.sections[secGlobal])
	b := append(appendU32(nil, n+2), rest...)
	for _, v := range []int64{0, int64(e.m.limits.StackSlots)} {
		b = append(b, 0x7e, 1, 0x42) // a mutable i64, i64.const
		b = append(appendS64(b, v), 0x0b)
	}
	return b
}

func (e *emitter) exportSection() []byte {
	n, rest := vector(e.m.sections[secExport])
	if e.m.hasStart {
		n++
	}
	b := append(appendU32(nil, n+2), rest...)
	export := func(name string, kind byte, index uint32) {
		b = append(appendU32(b, uint32(len(name))), name...)
		b = appendU32(append(b, kind), index)
	}
	export(FuelExport, KindGlobal, e.fuel)
	export(StackExport, KindGlobal, e.stack)
	if e.m.hasStart {
		export(StartExport, KindFunc, e.m.start)
	}
	return b
}
