package meter

import "strings"

// reserved is the prefix of the names that the meter adds. Guests cannot import or export names with it.
const reserved = "sluice.meter."

func (r *reader) valType() byte {
	t := r.byte()
	switch t {
	case 0x7f, 0x7e, 0x7d, 0x7c, 0x7b, 0x70, 0x6f:
	case 0x63, 0x64:
		r.fail("value type 0x%02x: %s", t, references)
	case 0x69:
		r.fail("value type 0x%02x: %s", t, exceptions)
	default:
		r.fail("unknown value type 0x%02x", t)
	}
	return t
}

func (r *reader) refType() byte {
	t := r.valType()
	if r.err == nil && t != 0x70 && t != 0x6f {
		r.fail("type 0x%02x is not a reference type", t)
	}
	return t
}

func (m *module) readTypes(r *reader) {
	n := r.count("types", m.limits.Types, 3)
	for i := 0; i < n && r.err == nil; i++ {
		if form := r.byte(); r.err == nil && form != 0x60 {
			r.fail("type %d has form 0x%02x: only function types (0x60) are supported: %s", i, form, references)
			return
		}
		var t FuncType
		for j, c := 0, r.count("parameters of a function type", m.limits.Params, 1); j < c; j++ {
			t.Params = append(t.Params, r.valType())
		}
		for j, c := 0, r.count("results of a function type", m.limits.Results, 1); j < c; j++ {
			t.Results = append(t.Results, r.valType())
		}
		m.types = append(m.types, t)
	}
}

func (m *module) typeIndex(r *reader) uint32 {
	i := r.u32()
	if r.err == nil && int64(i) >= int64(len(m.types)) {
		r.fail("type %d does not exist, there are %d", i, len(m.types))
		return 0
	}
	return i
}

func (m *module) readImports(r *reader) {
	n := r.count("imports", m.limits.Imports, 4)
	for i := 0; i < n && r.err == nil; i++ {
		mod, name := r.name(), r.name()
		kind := r.byte()
		if r.err != nil {
			return
		}
		switch kind {
		case KindFunc:
		case KindTable, KindMemory, KindGlobal:
			if name == "__linear_memory" {
				r.fail("%s", objectAdvice)
				return
			}
			what := []string{"", "table", "memory", "global"}[kind]
			r.fail("import %s of %s is a %s: only functions can be imported", Quote(name), Quote(mod), what)
			return
		case 4:
			r.fail("import %s of %s is a tag: %s", Quote(name), Quote(mod), exceptions)
			return
		default:
			r.fail("import %s of %s is of unknown kind %d", Quote(name), Quote(mod), kind)
			return
		}
		if strings.HasPrefix(mod, reserved) || strings.HasPrefix(name, reserved) {
			r.fail("import %s of %s: names that begin with %q are reserved", Quote(name), Quote(mod), reserved)
			return
		}
		t := m.typeIndex(r)
		if r.err != nil {
			return
		}
		m.imports = append(m.imports, Import{Module: mod, Name: name, Type: m.types[t]})
		m.funcs = append(m.funcs, t)
	}
}

func (m *module) readFunctions(r *reader) {
	n := r.count("functions", m.limits.Functions, 1)
	for i := 0; i < n && r.err == nil; i++ {
		m.funcs = append(m.funcs, m.typeIndex(r))
	}
}

// limitsOf reads the limits of a table or a memory.
func (r *reader) limitsOf(what string) (minimum, maximum uint32, hasMax bool) {
	flag := r.byte()
	switch {
	case r.err != nil:
		return
	case flag > 1 && flag < 4:
		r.fail("a shared %s: %s", what, atomics)
		return
	case flag >= 4 && flag < 8:
		r.fail(memory64Advice, what)
		return
	case flag > 1:
		r.fail("unknown limits 0x%02x of a %s", flag, what)
		return
	}
	minimum = r.u32()
	if flag == 1 {
		maximum, hasMax = r.u32(), true
		if r.err == nil && maximum < minimum {
			r.fail("a %s with a maximum of %d below its minimum of %d", what, maximum, minimum)
		}
	}
	return
}

func (m *module) readTables(r *reader) {
	n := r.count("tables", m.limits.Tables, 3)
	for i := 0; i < n && r.err == nil; i++ {
		t := table{ref: r.refType()}
		var hasMax bool
		t.min, t.max, hasMax = r.limitsOf("table")
		if r.err == nil && t.min > m.limits.TableSize {
			r.fail("table %d has a minimum of %d elements, the limit is %d", i, t.min, m.limits.TableSize)
		}
		if !hasMax || t.max > m.limits.TableSize {
			t.max = m.limits.TableSize
		}
		m.tables = append(m.tables, t)
	}
}

func (m *module) readMemory(r *reader) {
	n := r.count("memories", m.limits.Globals, 2)
	if n > 1 {
		r.fail("%d memories: %s", n, multiMemory)
	}
	if n == 0 || r.err != nil {
		return
	}
	mem := &memory{}
	mem.min, mem.max, mem.hasMax = r.limitsOf("memory")
	if r.err == nil && mem.min > m.limits.MemoryPages {
		r.fail("the memory has a minimum of %d pages of 64 KiB, the limit is %d", mem.min, m.limits.MemoryPages)
	}
	if r.err == nil && mem.hasMax && mem.max > 1<<16 {
		r.fail("the memory's maximum of %d pages is more than 4 GiB", mem.max)
	}
	m.memory = mem
}

func (m *module) readGlobals(r *reader) {
	n := r.count("globals", m.limits.Globals, 4)
	for i := 0; i < n && r.err == nil; i++ {
		t := r.valType()
		mut := r.byte()
		if r.err == nil && mut > 1 {
			r.fail("global %d has mutability %d", i, mut)
		}
		m.mutableGlobals += int(mut)
		m.constExpr(r, i)
		m.globals = append(m.globals, t)
	}
}

func (m *module) readExports(r *reader) {
	n := r.count("exports", m.limits.Exports, 3)
	seen := make(map[string]bool, n)
	for i := 0; i < n && r.err == nil; i++ {
		e := Export{Name: r.name(), Kind: r.byte()}
		if r.err != nil {
			return
		}
		if strings.HasPrefix(e.Name, reserved) {
			r.fail("export %s: names that begin with %q are reserved", Quote(e.Name), reserved)
			return
		}
		if seen[e.Name] {
			r.fail("duplicate export %s", Quote(e.Name))
			return
		}
		seen[e.Name] = true
		var have int
		switch e.Kind {
		case KindFunc:
			f := m.funcIndex(r, true)
			if r.err != nil {
				return
			}
			e.Type = m.types[m.funcs[f]]
			m.exports = append(m.exports, e)
			continue
		case KindTable:
			have = len(m.tables)
		case KindMemory:
			if m.memory != nil {
				have = 1
			}
		case KindGlobal:
			have = len(m.globals)
		default:
			r.fail("export %s is of unknown kind %d", Quote(e.Name), e.Kind)
			return
		}
		if x := r.u32(); r.err == nil && int64(x) >= int64(have) {
			r.fail("export %s has index %d of %d", Quote(e.Name), x, have)
		}
		m.exports = append(m.exports, e)
	}
}

func (m *module) readStart(r *reader) {
	m.start, m.hasStart = m.funcIndex(r, false), true
	if r.err == nil {
		if t := m.types[m.funcs[m.start]]; len(t.Params)+len(t.Results) > 0 {
			r.fail("the start function has type %s, want () -> ()", t)
		}
	}
}

func (m *module) readCode(r *reader) {
	n := r.count("function bodies", m.limits.Functions, 3)
	for i := 0; i < n && r.err == nil; i++ {
		f := len(m.imports) + i
		size := r.u32()
		if r.err == nil && int64(size) > int64(m.limits.Body) {
			r.fail("function %d%s: a body of %d bytes, the limit is %d", f, m.funcName(f), size, m.limits.Body)
			return
		}
		m.bodies = append(m.bodies, r.bytes(int(size)))
	}
}
