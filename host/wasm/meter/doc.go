// Package meter rewrites a core WebAssembly module so that whatever it does is bounded: bytes in, bytes out. It knows
// neither wazero nor the plugin ABI and uses the standard library only.
//
// What it adds to a module:
//
//   - a mutable i64 global, exported as FuelExport. Each basic block takes its cost from it, bulk operations and
//     growth take more by their size, and a module whose fuel is below zero traps (unreachable) at the next function
//     entry, loop header or bulk operation. Every path through a loop or a recursion meets one of them.
//   - a mutable i64 global, exported as StackExport: the slots of 8 bytes that are left of the call stack. A function
//     that calls takes its frame from it on entry and gives it back on return; below zero it traps. Functions that
//     call nothing are not counted: at most one of their frames is on the stack.
//   - an upper bound to each table that has none or a larger one, so that table.grow answers -1 in time.
//
// What it refuses, by name: what the module format does not allow, what makes a compiler slow (Limits), threads,
// exceptions, tail calls, typed function references, memories and tables and globals that are imported, and names that
// begin with "sluice.meter.". Validation of types is left to the engine, which sees the rewritten module; all indices are
// checked here, against what the guest itself defined, so that a guest cannot name what was added to it.
//
// The costs are in README.md and cost.go. Overdraft: between two checks a module can run at most the body of one
// function and the small functions that it calls (smallLeaf each), so fuel ends at most some million below zero.
package meter
