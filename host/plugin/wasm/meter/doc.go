// Package meter rewrites a core WebAssembly module to bound its use of CPU time and stack: bytes in, bytes out. It knows
// neither wazero nor the plugin ABI and imports the standard library only.
//
// It adds to a module:
//
//   - a mutable i64 global, exported as FuelExport. Each basic block subtracts its cost, bulk operations and growth
//     subtract more, by size. With fuel below zero the module traps (unreachable) at its next check.
//   - a mutable i64 global, exported as StackExport: the remaining call stack, in slots of 8 bytes. A function that makes
//     calls subtracts its frame on entry and adds it back on return; below zero it traps. Leaf functions are not counted:
//     at most one of their frames is on the stack.
//   - a maximum for each table without one or with a larger one, so that table.grow eventually returns -1.
//
// It replaces instructions that the engine compiles wrongly (replace.go), and refuses, with a reason: malformed modules, modules
// that are expensive to compile (Limits), threads, exceptions, tail calls, typed function references, ref.func in code (wazero
// allocates a reference each time and frees it with the instance only), imported memories, tables and globals, and names that
// begin with "sluice.meter.". The engine validates types, on the rewritten module. All indices are checked here, against the
// definitions of the guest, so that a guest cannot refer to the added globals.
//
// README.md and cost.go list the costs. Checks are at each loop header, before each bulk operation, on entry of each function
// except small leaf functions, on return of each function that makes calls, and in long code after checkEvery. A path from
// one check to the next uses at most checkEvery, the small functions that it calls included, plus one instruction or block.
package meter
