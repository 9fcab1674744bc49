package meter

// Limits bounds what a module may hold; a module that holds more is refused before anything is compiled.
type Limits struct {
	Module    int // bytes of the whole module
	Body      int // bytes of one function body, its locals included
	Types     int
	Params    int // of one function type
	Results   int // of one function type or block
	Imports   int
	Functions int // defined, not imported
	Globals   int
	Exports   int
	Tables    int
	TableSize uint32 // elements of one table, now or after table.grow
	Elements  int    // element segments
	ElementN  int    // elements of one segment
	Data      int    // data segments
	Locals    int    // of one function, parameters included
	Nesting   int    // blocks inside one another
	LoopDepth int    // loops inside one another
	Loops     int    // loops of one function
	BrTable   int    // labels of one br_table
	// Work bounds compilation, summed over the module: for each function, instructions + locals × joins + joins² / 64
	// + 100 × loops + 8 × calls + 3 × loads and stores. Joins are the places where control flow meets: an SSA compiler may need a value there
	// for each local, and some of its passes take time that is square in their number or in that of loops.
	Work int
	// FunctionWork is the same for a single function, which bounds the memory that compiling takes.
	FunctionWork int
	MemoryPages  uint32 // of 64 KiB: the least that the module asks for must not be more
	StackSlots   uint32 // of 8 bytes: what nested calls may take together
}

// DefaultLimits leaves room for what Go, C, Rust and AssemblyScript produce: a Go guest with JSON and fmt takes a third of
// Work, and less of all else.
func DefaultLimits() Limits {
	return Limits{
		Module: 16 << 20, Body: 64 << 10,
		Types: 4096, Params: 64, Results: 16,
		Imports: 64, Functions: 30_000, Globals: 1024, Exports: 1024,
		Tables: 8, TableSize: 100_000, Elements: 1024, ElementN: 100_000, Data: 100_000,
		Locals: 2000, Nesting: 3000, LoopDepth: 64, Loops: 1000, BrTable: 8192,
		Work: 12_000_000, FunctionWork: 250_000,
		MemoryPages: 1024, StackSlots: 1 << 20,
	}
}
