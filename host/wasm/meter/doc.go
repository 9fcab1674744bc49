// Package meter rewrites a core WebAssembly module to bound its use of CPU time and stack: bytes in, bytes out. It knows
// neither wazero nor the plugin ABI and imports the standard library only.
//
// It adds to a module:
//
//   - a mutable i64 global, exported as FuelExport. Each basic block subtracts its cost, bulk operations and growth
//     subtract more, by size. With fuel below zero the module traps (unreachable) at the next function entry, loop header
//     or bulk operation. Every path through a loop or a recursion passes one of them.
//   - a mutable i64 global, exported as StackExport: the remaining call stack, in slots of 8 bytes. A function that makes
//     calls subtracts its frame on entry and adds it back on return; below zero it traps. Leaf functions are not counted:
//     at most one of their frames is on the stack.
//   - a maximum for each table without one or with a larger one, so that table.grow eventually returns -1.
//
// It refuses, with a reason: malformed modules, modules that are expensive to compile (Limits), threads, exceptions, tail
// calls, typed function references, imported memories, tables and globals, and names that begin with "sluice.meter.".
// The engine validates types, on the rewritten module. All indices are checked here, against the definitions of the guest,
// so that a guest cannot refer to the added globals.
//
// README.md and cost.go list the costs. Overdraft: between two checks a module can execute at most the body of one function
// and the small functions that it calls (smallLeaf each), so fuel ends at most a few million below zero.
package meter
