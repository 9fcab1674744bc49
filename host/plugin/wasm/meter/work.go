package meter

// work counts what compiling a function costs. The compiler (wazero's) makes basic blocks in static single assignment form
// and allocates registers by linear scan. Most of its passes are linear in the number of instructions, but some are not:
//
//   - At each edge to a join of control flow, a parameter is passed for each local.
//   - Redundant parameters are searched for by comparing all parameters of a join with all, in rounds: one for each level
//     of nested loops (passRedundantPhiEliminationOpt).
//   - The values that are live at the beginning of a block are listed for each block (livenessAnalysis), and the place
//     where one is spilled is searched for block by block (scheduleSpill).
//   - The value of a local is searched for block by block, up to the last join (findValue).
//   - The addresses that are known to be within memory are copied for each block (finalizeKnownSafeBoundsAtTheEndOfBlock).
//   - After each call, all mutable globals are loaded (reloadAfterCall); most loads are removed later.
//   - Dominators are searched for in a chain of blocks, for each edge (passCalculateImmediateDominators).
//
// The scanner follows how the compiler makes blocks, so that it counts the same blocks, edges and values. A unit is about
// a plain instruction: 0.2 to 0.5 µs.
type work struct {
	values int // locals, parameters and two for the memory: what is passed to joins
	arity  int // of the largest type of a block

	blocks  int
	edges   int   // to blocks with a label
	depth   int   // of nested loops
	traps   int   // instructions that may trap, each with an exit of its own
	moves   int64 // instructions, and parameters and results of calls
	reloads int64 // of globals after calls
	params  int64 // passed to joins
	live    int64 // values at the beginning of blocks
	bounds  int64 // addresses at the end of blocks
	steps   int64 // through blocks that findValue takes
}

// Divisors of counts whose unit is cheaper than an instruction.
const (
	livePerUnit   = 8
	boundsPerUnit = 4
	stepsPerUnit  = 8
	reloadPerUnit = 2
	pairsPerUnit  = 128 // of parameters compared
	chainPerUnit  = 64  // blocks × edges
	trapsPerUnit  = 256 // traps × traps

	clearedPerUnit = 64 // blocks of the largest function, for each function
	visitedPerUnit = 32 // types and globals, for each function
)

// sectionWork is the cost of the sections without code.
func (m *module) sectionWork() int64 {
	types := 0
	for _, t := range m.types {
		types += 8 + len(t.Params) + len(t.Results)
	}
	return int64(2*types + m.elements + m.dataSegments + m.dataBytes/1024)
}

// functionWork is the cost of a function beside its body.
func (m *module) functionWork() int64 {
	return 8 + int64(len(m.types)+len(m.globals))/visitedPerUnit
}

// space is the part of the cost that takes memory as well as time.
func (w *work) space() int64 {
	return w.moves + w.params + w.reloads/reloadPerUnit + w.live/livePerUnit + w.bounds/boundsPerUnit
}

// total is the cost in units.
func (w *work) total() int64 {
	all := int64(w.values + w.arity)
	pairs := all * all * int64(w.edges) * int64(w.depth+2)
	return w.space() + w.steps/stepsPerUnit + pairs/pairsPerUnit + int64(w.blocks)*int64(w.blocks+w.edges)/chainPerUnit +
		int64(w.traps)*int64(w.traps)/trapsPerUnit
}

// flow is what the compiler knows at the current instruction.
type flow struct {
	live   bool // reachable
	chain  int  // blocks since the last join
	bounds int  // addresses known to be within memory
}

// edges summarizes the edges to the block that follows a frame.
type edges struct {
	n      int
	chain  int // the longest
	bounds int // the fewest
}

func (e *edges) add(f flow) {
	if e.n == 0 || f.bounds < e.bounds {
		e.bounds = f.bounds
	}
	e.chain = max(e.chain, f.chain)
	e.n++
}

// Opcodes that open a frame.
const (
	opBlock = 0x02
	opLoop  = 0x03
	opIf    = 0x04
)

// find counts the search for the value of a local, a global or the memory's base address.
func (s *scanner) find() {
	if s.flow.live {
		s.b.work.steps += int64(s.flow.chain)
	}
}

// newBlock counts a block that begins here, with one predecessor.
func (s *scanner) newBlock() {
	if !s.flow.live {
		return
	}
	s.flow.chain++
	w := &s.b.work
	w.blocks++
	w.live += int64(w.values + len(s.operands))
	w.bounds += int64(s.flow.bounds)
}

// edge counts a branch from here to the label of f.
func (s *scanner) edge(f *frame) {
	w := &s.b.work
	w.edges++
	w.params += int64(w.values + w.arity)
	w.steps += int64(w.values) * int64(s.flow.chain)
	if f.kind == opLoop {
		f.loopEdges++
	} else {
		f.following.add(s.flow)
	}
}

// fuelCheck counts the blocks of a comparison that the meter adds: then, else, and what follows.
func (s *scanner) fuelCheck() {
	for range 3 {
		s.newBlock()
	}
	s.b.work.moves += 6
}

// trap counts an instruction that may trap and takes moves more instructions.
func (s *scanner) trap(moves int64) {
	s.b.work.traps++
	s.b.work.moves += moves
}

// loop counts the loop of a memory or table instruction.
func (s *scanner) loop() {
	s.fuelCheck()
	for range 6 {
		s.newBlock()
	}
	s.trap(120)
}

// enter opens the frame of a block, a loop or an if.
func (s *scanner) enter(f *frame) {
	w := &s.b.work
	w.arity = max(w.arity, len(f.typ.Params), len(f.typ.Results))
	if f.kind == opIf {
		s.pop(1)
	}
	s.pop(len(f.typ.Params))
	f.height = len(s.operands)
	s.push(f.typ.Params...)
	f.start = s.flow
	switch {
	case !s.flow.live:
	case f.kind == opLoop:
		w.edges++
		w.params += int64(w.values + w.arity)
		w.steps += int64(w.values) * int64(s.flow.chain)
		s.flow.chain = -1
		s.newBlock()
	case f.kind == opIf:
		s.newBlock()
	}
}

// otherwise begins the else part of f.
func (s *scanner) otherwise(f *frame) {
	if s.flow.live {
		s.edge(f)
	}
	s.flow = f.start
	s.closed(f)
	s.push(f.typ.Params...)
	s.newBlock()
}

// leave closes f.
func (s *scanner) leave(f *frame) {
	s.closed(f)
	if !f.start.live {
		s.push(f.typ.Results...)
		return
	}
	fromBody := s.flow.live
	if fromBody {
		f.following.add(s.flow)
	}
	if f.kind == opIf && !f.hasElse {
		s.flow = f.start
		s.newBlock()
		f.following.add(s.flow)
	}
	w := &s.b.work
	if f.kind != opLoop {
		w.edges++
		w.params += int64(w.values + w.arity)
		w.steps += int64(w.values) * int64(f.following.chain)
	}
	chain := f.following.chain
	switch {
	case f.following.n > 1:
		chain = -1
	case f.kind == opLoop && f.loopEdges == 0: // the header is no join
		chain += f.start.chain
	}
	s.flow = flow{live: f.following.n > 0, chain: chain, bounds: f.following.bounds}
	s.push(f.typ.Results...)
	s.newBlock()
}
