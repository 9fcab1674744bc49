package meter

// Limits of a module. A module that exceeds one is refused before compilation.
type Limits struct {
	Module    int // bytes of the whole module
	Body      int // bytes of one function body, including locals
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
	ElementN  int    // elements of all segments
	Data      int    // data segments
	DataBytes int    // of all data segments
	Locals    int    // of one function, including parameters
	Nesting   int    // depth of nested blocks
	LoopDepth int    // depth of nested loops
	Loops     int    // loops of one function
	BrTable   int    // labels of one br_table
	// Work bounds the cost of compilation of all functions and sections in units of about a plain instruction, 0.2 to
	// 0.5 µs on a machine of 2020. work.go says what is counted.
	Work int
	// FunctionWork bounds the part of it that takes memory, for a single function.
	FunctionWork int
	MemoryPages  uint32 // of 64 KiB: maximum of the initial memory
	StackSlots   uint32 // of 8 bytes: maximum of the call stack
}

// DefaultLimits returns limits that fit the output of Go, C, Rust and AssemblyScript: a Go guest with JSON and fmt uses a
// third of Work, and less of everything else.
func DefaultLimits() Limits {
	return Limits{
		Module: 16 << 20, Body: 64 << 10,
		Types: 4096, Params: 64, Results: 16,
		Imports: 64, Functions: 30_000, Globals: 1024, Exports: 1024,
		Tables: 8, TableSize: 100_000, Elements: 1024, ElementN: 100_000, Data: 100_000, DataBytes: 16 << 20,
		Locals: 2000, Nesting: 3000, LoopDepth: 64, Loops: 1000, BrTable: 8192,
		Work: 24_000_000, FunctionWork: 300_000,
		MemoryPages: 1024, StackSlots: 1 << 20,
	}
}
