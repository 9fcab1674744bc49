package meter

// Info is what a module is, as far as its host needs to know before it is compiled.
type Info struct {
	Size        int  // bytes before rewriting
	Metered     int  // bytes after it
	Functions   int  // defined
	LargestBody int  // bytes of the largest body
	Work        int  // see Limits.Work
	Start       bool // it has a start function
	Imports     []Import
	Exports     []Export // the guest's own
	MemoryMin   uint32   // pages of 64 KiB; 0 without a memory
	MemoryMax   uint32   // what the module itself says; 0: nothing
}

// Rewrite checks wasm against limits and returns it with fuel and call depth metered. The new module begins with no
// fuel, so it can do nothing until its host sets the global. A start function is not started by the engine, where it
// would run before the host could give it fuel, but exported as StartExport: the host calls it first. The same input
// gives the same output. The error is an *Error.
func Rewrite(wasm []byte, limits Limits) ([]byte, *Info, error) {
	m := &module{limits: &limits, ops: newOpcodes()}
	if err := m.split(wasm); err != nil {
		return nil, nil, err
	}
	if err := m.parse(); err != nil {
		return nil, nil, err
	}
	info := &Info{Size: len(wasm), Functions: len(m.bodies), Imports: m.imports, Exports: m.exports,
		Start: m.hasStart}
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

// code scans and rewrites all bodies into the content of the code section.
func (e *emitter) code(info *Info) ([]byte, error) {
	m := e.m
	if m.sections[secCode] == nil {
		return nil, nil
	}
	var (
		b     body
		stack []frame
		one   []byte
		err   error
	)
	out := make([]byte, 0, len(m.sections[secCode])*3/2)
	out = appendU32(out, uint32(len(m.bodies)))
	for i, raw := range m.bodies {
		fn := len(m.imports) + i
		if stack, err = m.scan(fn, raw, &b, stack); err != nil {
			return nil, err
		}
		info.LargestBody = max(info.LargestBody, len(raw))
		info.Work += b.work(len(m.types[m.funcs[fn]].Params))
		if info.Work > m.limits.Work {
			return nil, refuse("too dear to compile: instructions, locals × joins and loops of the functions up to %d%s make %d, the limit is %d",
				fn, m.funcName(fn), info.Work, m.limits.Work)
		}
		one = e.body(one[:0], fn, raw, &b)
		out = append(appendU32(out, uint32(len(one))), one...)
	}
	return out, nil
}
