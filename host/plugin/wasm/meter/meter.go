package meter

// Info describes a module before compilation.
type Info struct {
	Size        int  // bytes before rewriting
	Metered     int  // bytes after rewriting
	Functions   int  // defined
	LargestBody int  // bytes of the largest function body
	Work        int  // see Limits.Work
	Start       bool // it has a start function
	Imports     []Import
	Exports     []Export // of the guest, without those that are added
	MemoryMin   uint32   // pages of 64 KiB; 0 without a memory
	MemoryMax   uint32   // declared maximum; 0: none
	Elements    int      // of all element segments
	Data        int      // segments
	DataBytes   int      // of all data segments
	Globals     int      // of the guest
	TableMin    int      // elements of all tables of a new instance
	TableMax    int      // elements to which all tables can grow together
	Producers   []Producer
}

// InstantiateFuel is the price of an instance: the engine evaluates an expression for each element, data segment and
// global, and clears and fills the memory.
func (i *Info) InstantiateFuel() int64 {
	return costInstance + costInitial*int64(i.Elements+i.Data+i.Globals) + int64(i.DataBytes)/bytesPerFuel +
		costElement*int64(i.TableMin) + costPage*int64(i.MemoryMin)
}

// Rewrite checks wasm against limits and returns it with fuel and call depth metered. The new module starts without fuel,
// so it can do nothing until the host sets the global. For the same reason a start function is exported as StartExport
// instead of being run by the engine at instantiation: the host calls it first. Rewrite is deterministic. Its error is an
// *Error.
func Rewrite(wasm []byte, limits Limits) ([]byte, *Info, error) {
	m := &module{limits: &limits, ops: newOpcodes(), vectors: newVectors()}
	if err := m.split(wasm); err != nil {
		return nil, nil, err
	}
	if err := m.parse(); err != nil {
		return nil, nil, err
	}
	info := &Info{Size: len(wasm), Functions: len(m.bodies), Imports: m.imports, Exports: m.exports,
		Start: m.hasStart, Elements: m.elements, Data: m.dataSegments, DataBytes: m.dataBytes, Globals: len(m.globals), Producers: m.producers}
	for _, t := range m.tables {
		info.TableMin += int(t.min)
		info.TableMax += int(t.max)
	}
	if m.memory != nil {
		info.MemoryMin, info.MemoryMax = m.memory.min, m.memory.max
	}
	e := newEmitter(m)
	code, err := e.code(info)
	if err != nil {
		return nil, nil, err
	}
	out := e.module(code)
	info.Metered = len(out)
	return out, info, nil
}

// code scans and rewrites all bodies and returns the content of the code section.
func (e *emitter) code(info *Info) ([]byte, error) {
	m := e.m
	if m.sections[secCode] == nil {
		return nil, nil
	}
	var (
		b      body
		stack  []frame
		one    []byte
		err    error
		blocks int
	)
	total := m.sectionWork()
	out := make([]byte, 0, len(m.sections[secCode])*3/2)
	for i, raw := range m.bodies {
		fn := len(m.imports) + i
		if stack, err = m.scan(fn, raw, &b, stack); err != nil {
			return nil, err
		}
		info.LargestBody = max(info.LargestBody, len(raw))
		// Tables that grow with the largest function are cleared for all that follow.
		blocks = max(blocks, b.work.blocks)
		total += b.work.total() + m.functionWork() + int64(blocks/clearedPerUnit)
		if total > int64(m.limits.Work) {
			return nil, refuse("too expensive to compile: instructions, locals, loops and blocks of the functions up to %d%s make %d, the limit is %d",
				fn, m.funcName(fn), total, m.limits.Work)
		}
		one = e.body(one[:0], fn, raw, &b)
		out = append(appendU32(out, uint32(len(one))), one...)
	}
	info.Work = int(total)
	return append(appendU32(nil, uint32(len(m.bodies))), out...), nil
}
