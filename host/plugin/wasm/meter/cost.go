package meter

// Fuel per instruction. Instructions without a constant of their own cost costPlain. Structural ones (block, loop, end,
// else, nop) cost nothing, but a loop header costs at least costPlain, and joins cost by the locals that they copy. A unit takes
// at most 2.5 ns on a machine of 2020, except for loads and stores that miss all caches: see BenchmarkFuel of package wasm.
const (
	costPlain    = 1
	costVector   = 2
	costDivide   = 8  // integer and float division, remainder, square root
	costConvert  = 2  // float to integer, with its range checks
	costCall     = 4  // the call itself, without the callee
	costIndirect = 8  // call_indirect: bounds, null and type check
	costHost     = 64 // a call that leaves the sandbox
	costTable    = 2
	costBulk     = 32   // memory.fill, memory.copy, memory.init, table.fill, table.copy, table.init, plus their size
	costDrop     = 32   // data.drop, elem.drop
	costGrow     = 1024 // memory.grow, table.grow, plus their size
	bytesPerFuel = 8    // of memory.fill, memory.copy, memory.init
	costElement  = 1    // an element of table.fill, table.copy, table.init
	costNewElem  = 16   // an element of table.grow
	costPage     = 4096 // a page (64 KiB) of memory.grow, cleared
	costInstance = 10_000
	costInitial  = 256 // an element, a data segment or a global of a new instance
)

// nearPages is the size of a memory, in pages of 64 KiB, that stays in the caches of a core. A load or store in a memory that may
// become larger costs costFar more: it takes up to 170 ns on an idle machine if its address is in no cache.
const (
	nearPages = 16
	costFar   = 7
)

// smallLeaf is the largest cost of a function without calls and loops that does not check fuel on entry.
const smallLeaf = 48

// checkEvery is the fuel that a path through a function can use between two checks, except for a single instruction.
const checkEvery = 8192

// slotsPerFuel is the number of 8-byte slots copied for a unit of fuel where control flow joins.
const slotsPerFuel = 4

// copies returns the fuel for copying a number of 8-byte slots.
func copies(slots int) int64 { return int64(slots / slotsPerFuel) }

// frameSlots returns an upper bound of the stack frame of a function: saved registers, parameters, results, locals, and a
// spill slot for each value that it computes. The constant also bounds the number of frames that a trap unwinds.
func frameSlots(params, results, locals, instructions int) int64 {
	return int64(32 + params + results + locals + instructions)
}

// immediate is the kind of operand that follows an opcode.
type immediate uint8

const (
	immInvalid immediate = iota
	immNone
	immBlock
	immLabel
	immBrTable
	immLocal
	immGlobal
	immTable
	immMemArg
	immZero
	immI32
	immI64
	immF32
	immF64
	immSelect
	immCall
	immIndirect
	immRefNull
	immRefFunc
	immMisc
	immVector
)

type opcode struct {
	imm  immediate
	cost uint8
	// traps is set for division and conversion; instructions with an immediate are known to trap.
	traps bool
	effect
}

// newOpcodes returns the one-byte opcodes of WebAssembly 2.0; others are refused.
func newOpcodes() *[256]opcode {
	var t [256]opcode
	set := func(from, to int, imm immediate, cost uint8) {
		for i := from; i <= to; i++ {
			t[i] = opcode{imm: imm, cost: cost}
		}
	}
	set(0x00, 0x00, immNone, costPlain) // unreachable
	set(0x01, 0x01, immNone, 0)         // nop
	set(0x02, 0x03, immBlock, 0)        // block, loop
	set(0x04, 0x04, immBlock, costPlain)
	set(0x05, 0x05, immNone, 0) // else
	set(0x0b, 0x0b, immNone, 0) // end
	set(0x0c, 0x0d, immLabel, costPlain)
	set(0x0e, 0x0e, immBrTable, 2)
	set(0x0f, 0x0f, immNone, costPlain)
	set(0x10, 0x10, immCall, costCall)
	set(0x11, 0x11, immIndirect, costIndirect)
	set(0x1a, 0x1a, immNone, costPlain)
	set(0x1b, 0x1c, immSelect, costPlain)
	set(0x20, 0x22, immLocal, costPlain)
	set(0x23, 0x24, immGlobal, costPlain)
	set(0x25, 0x26, immTable, costTable)
	set(0x28, 0x3e, immMemArg, costPlain)
	set(0x3f, 0x3f, immZero, costPlain)
	set(0x40, 0x40, immZero, 0) // memory.grow: charged by size
	set(0x41, 0x41, immI32, costPlain)
	set(0x42, 0x42, immI64, costPlain)
	set(0x43, 0x43, immF32, costPlain)
	set(0x44, 0x44, immF64, costPlain)
	set(0x45, 0xc4, immNone, costPlain)
	for _, i := range []int{0x6d, 0x6e, 0x6f, 0x70, 0x7f, 0x80, 0x81, 0x82, 0x91, 0x95, 0x9f, 0xa3} {
		t[i].cost = costDivide
	}
	set(0xa8, 0xab, immNone, costConvert)
	set(0xae, 0xb1, immNone, costConvert)
	for _, i := range []int{0x6d, 0x6e, 0x6f, 0x70, 0x7f, 0x80, 0x81, 0x82, 0xa8, 0xa9, 0xaa, 0xab, 0xae, 0xaf, 0xb0, 0xb1} {
		t[i].traps = true
	}
	set(0xd0, 0xd0, immRefNull, costPlain)
	set(0xd1, 0xd1, immNone, costPlain)
	set(0xd2, 0xd2, immRefFunc, 0)
	set(0xfc, 0xfc, immMisc, 0)
	set(0xfd, 0xfd, immVector, 0)
	setEffects(&t)
	return &t
}

// refusedOpcode returns why an opcode is refused.
func refusedOpcode(op byte) string {
	switch op {
	case 0x06, 0x07, 0x08, 0x09, 0x0a, 0x18, 0x19, 0x1f:
		return exceptions.String()
	case 0x12, 0x13, 0x15:
		return tailCalls.String()
	case 0x14, 0xd3, 0xd4, 0xd5, 0xd6, 0xfb:
		return references.String()
	case 0xfe:
		return atomics.String()
	}
	return "not an instruction of WebAssembly 2.0"
}
